#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app_config.h"
#include "launch/session.h"
#include "millrace/generate/generate.h"
#include "millrace/generate/sampling.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/parallel/shard_plan.h"
#include "run/resume.h"
#include "train/input_plan.h"
#include "train/roles.h"
#include "train/run_memory.h"
#include "train/shuffle_plan.h"
#include "train/validation_set.h"

// What a run of `train` is going to do, worked out without networks before anything is written. `preflight` works out
// the same plan, so that it judges what `train` does.
namespace millrace {

// The same on every rank, except for shuffle.rows, own_memory and start.newest_there.
struct TrainPlan {
  const TrainConfig& config;
  PipelineFolder pipeline = {};
  nlohmann::json unet = {};                // config.json of the U-Net
  std::string unet_file = {};              // the file it was read from
  SchedulerConfig scheduler = {};          // of the noise that is added, and for exports
  std::vector<std::string> warnings = {};  // of what does not keep the run from starting
  Roles roles = {};
  ShardPlan shards = {};  // of the trainers
  InputPlan input = {};
  ShufflePlan shuffle = {};     // `train` alone measures rows for it
  std::int64_t own_memory = 0;  // bytes of its device that this rank may have, if all ranks that share it get as much
  int micro_batch = 0;          // images: batch.micro, or what `auto` stands for
  std::optional<ValidationPlan> validation = {};
  std::vector<ImageRequest> pictures = {};    // to paint again and again: samples.prompts
  std::optional<SamplingPlan> sampling = {};  // how to paint them; none without pictures
  Start start = {};                           // step 0 until `train` has looked for a checkpoint

  void warn_of(const std::optional<std::string>& complaint) {
    if (complaint) warnings.push_back(*complaint);
  }
  UNet2DConditionConfig unet_config() const { return UNet2DConditionConfig::from_json(unet, unet_file); }
};

// The parts of a plan, each made from those before it.

// Plans `pipeline`, `unet`, `scheduler`, `pictures` and what belongs to them; every rank does so by itself.
void plan_model(TrainPlan& plan);
// Plans `roles` and `shards`, by the GPUs and hosts of all ranks; may add to `warnings`. Collective.
void plan_roles(const Session& session, TrainPlan& plan);
// Plans what is read, encoded and handed over: all from `input` to `validation`. Contradictions between keys go into
// `report`, which is thrown. Collective.
void plan_data(const Session& session, TrainPlan& plan, config::Report& report);

// Whether the trainers encode as well.
bool trainers_encode(const TrainPlan& plan);
// The memory that its ranks need on devices like this one. `program_bytes` as in RunMemory. Refers to plan.config.
RunMemory run_memory(const TrainPlan& plan, torch::Device device, double program_bytes);

// What determines the encodings and noise of samples, as make_identity takes it. Read by rank 0. Collective.
nlohmann::json describe_encoders(const Group& world, const TrainPlan& plan);

}  // namespace millrace
