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

// What a run of `train` is going to do: worked out without networks, before anything is written. `preflight` works out
// the same, so that it judges what `train` does.
namespace millrace {

// The same on every rank, but for shuffle.rows, own_memory and start.newest_there.
struct TrainPlan {
  const TrainConfig& config;
  PipelineFolder pipeline = {};
  nlohmann::json unet = {};                // config.json of the U-Net
  std::string unet_file = {};              // where it was read
  SchedulerConfig scheduler = {};          // of the noise that is added, and of an export
  std::vector<std::string> warnings = {};  // of what does not keep it from starting
  Roles roles = {};
  ShardPlan shards = {};  // of the trainers
  InputPlan input = {};
  ShufflePlan shuffle = {};     // `train` alone measures rows for it
  std::int64_t own_memory = 0;  // bytes that this rank may have of its device, if all who share it have as much
  int micro_batch = 0;          // images: batch.micro, or what `auto` stands for
  std::optional<ValidationPlan> validation = {};
  std::vector<ImageRequest> pictures = {};    // that are painted again and again: samples.prompts
  std::optional<SamplingPlan> sampling = {};  // how; none without pictures
  Start start = {};                           // step 0 until `train` has looked for a checkpoint

  UNet2DConditionConfig unet_config() const { return UNet2DConditionConfig::from_json(unet, unet_file); }
};

// The parts of a plan, each from those before it.

// `pipeline`, `unet`, `scheduler`, `pictures` and what belongs to them, by every rank for itself.
void plan_model(TrainPlan& plan);
// `roles` and `shards`, by the GPUs and hosts of all ranks; may add to `warnings`. Collective.
void plan_roles(const Session& session, TrainPlan& plan);
// What is read, encoded and handed over: all from `input` to `validation`. Problems of two keys go into `report`, which
// is thrown. Collective.
void plan_data(const Session& session, TrainPlan& plan, config::Report& report);

// Whether its trainers encode as well.
bool trainers_encode(const TrainPlan& plan);
// What its ranks need of the memory of devices like this one. `program_bytes` as in RunMemory. Refers to plan.config.
RunMemory run_memory(const TrainPlan& plan, torch::Device device, double program_bytes);

// What makes encodings and noise out of samples, as make_identity takes it. Read by rank 0. Collective.
nlohmann::json describe_encoders(const Group& world, const TrainPlan& plan);

}  // namespace millrace
