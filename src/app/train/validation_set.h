#pragma once
#include <optional>
#include <string>
#include <vector>

#include "app_config.h"
#include "launch/session.h"
#include "millrace/encode/batch.h"
#include "millrace/produce/encode_pipeline.h"
#include "train/input_plan.h"
#include "train/roles.h"

// data.validation on its way to the trainers' memory, by the roles of the run: producers read and encode it once before
// training, with the stream, encoders and hand-off of training.
namespace millrace {

// The same on every rank.
struct ValidationPlan {
  ProducerConfig config;  // its data.train is data.validation
  InputPlan input;
  int batches = 0, global_batch = 0;
};

// Nothing without data.validation. `training_shape`: of the encodings that are trained on, if there are any. Errors
// name data.validation. Collective.
std::optional<ValidationPlan> plan_validation(const Session& session, const TrainConfig& config,
                                              const PipelineFolder& pipeline, const Roles& roles,
                                              const std::optional<EncodingShape>& training_shape);

// "every 1000 steps: 8 batches of 2048 samples of 4 archives, 2.5 GiB in the trainers' memory": for the start-up table.
std::string describe(const ValidationPlan& plan, const ValidationConfig& config);

// What a rank needs for share_validation.
struct ValidationPass {
  const Session& session;
  const ValidationPlan& plan;
  const PipelineFolder& pipeline;
  const Roles& roles;
  EncoderNetworks networks = {};  // those of a producer, if training has any
  Group handoff = {};             // must not be in use meanwhile
  Group of_role;                  // the trainers, or the producers
  double limit_seconds;           // within which a producer has to send something
};

// Producers encode their stripes' samples; trainers collect their local batches of them, and return these. A rank that
// does both does so by itself. Error(suspect_node) when a producer sends nothing for too long. Fewer batches if a
// signal told any rank to stop. Collective over all ranks of the run.
std::vector<EncodedBatch> share_validation(const ValidationPass& pass);

}  // namespace millrace
