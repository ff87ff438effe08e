#pragma once
#include <optional>
#include <string>
#include <vector>

#include "app_config.h"
#include "millrace/dataset/manifest.h"
#include "millrace/encode/batch.h"
#include "millrace/loader/data_plan.h"
#include "millrace/produce/encode_pipeline.h"
#include "run/roles.h"
#include "run/session.h"

// data.validation on its way to the trainers' memory, by the roles of the run: producers read and encode it once before
// training, by the same stream, encoders and hand-off, and forget it.
namespace millrace {

// The same on every rank.
struct ValidationPlan {
  ProducerConfig config;  // its data.train is data.validation
  DataPlan data;
  EncodingPlan encoding;
  Routing routing;
  int batches = 0, global_batch = 0;
  ParcelSize parcel;

  int samples_per_stripe() const { return global_batch / static_cast<int>(data.stripes.stripes); }
  std::size_t parcel_bytes() const;
};

// Nothing without data.validation. Errors name data.validation. Collective.
std::optional<ValidationPlan> plan_validation(const Session& session, const TrainConfig& config,
                                              const PipelineFolder& pipeline, const Roles& roles,
                                              const EncodingShape& training_shape);

// "8 batches of 2048 samples of 4 archives, 2.5 GiB in memory, every 1000 steps": for the start-up table.
std::string describe(const ValidationPlan& plan, const ValidationConfig& config);

// What this rank does with it: the first makes its stripes' samples, the second collects its local batches, the
// third does both. `networks`: those of training, if it has any. `handoff` is for this alone. Collective over all ranks
// of the run.
void produce_validation(const Session& session, const ValidationPlan& plan, const PipelineFolder& pipeline,
                        const EncoderNetworks& networks, const Roles& roles, const Group& handoff);
std::vector<EncodedBatch> collect_validation(const Session& session, const ValidationPlan& plan, const Roles& roles,
                                             const Group& handoff, double limit_seconds);
std::vector<EncodedBatch> make_validation(const Session& session, const ValidationPlan& plan,
                                          const PipelineFolder& pipeline, const EncoderNetworks& networks,
                                          double limit_seconds);

}  // namespace millrace
