#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "millrace/config/config.h"
#include "millrace/core/units.h"
#include "millrace/diffusion/objective.h"
#include "millrace/parallel/optim_config.h"
#include "millrace/parallel/shard_plan.h"
#include "millrace/produce/producer_config.h"
#include "millrace/train/autoencoder_task.h"
#include "millrace/train/train_config.h"

// The whole configuration of a training run: every section beside its owner, put together here.
namespace millrace {

// What `preprocess` reads.
struct PreprocessConfig : ProducerConfig {
  GuardConfig guard;
  config::Auto<int> threads{};

  void describe(config::Section& section);
};

// Section `roles`.
struct RolesConfig {
  config::Auto<int> producers{};                             // auto: by GPU model, or every rank does both
  std::optional<std::string> producer_gpu{}, trainer_gpu{};  // words of a GPU's name

  void describe(config::Section& section);
};

// Section `batch` where trainers may choose their micro-batch.
struct TrainBatchConfig {
  int global = 2048;
  config::Auto<int> micro{32};

  void describe(config::Section& section);
};

// What `train` reads.
struct TrainConfig : ProducerConfig {
  RolesConfig roles;
  TrainBatchConfig batch;
  Duration duration = Duration::steps(550000);
  ObjectiveConfig objective;
  OptimConfig optim;
  EmaConfig ema;
  ParallelConfig parallel;
  CheckpointConfig checkpoint;
  PicturesConfig samples;
  ValidationConfig validation;
  LogConfig log;
  RecordConfig record;
  GuardConfig guard;
  config::Auto<int> threads{};

  void describe(config::Section& section);
  // `identity`: identity_of_losses (run/identity.h).
  LoopConfig loop(int micro_batch, const nlohmann::json& identity) const;
};

// What `train-autoencoder` reads: the same sections without those of the U-Net, and the loss.
struct AutoencoderTrainConfig {
  RunConfig run;
  struct Model {
    config::Required pipeline;
    ModelConfig::Init init = ModelConfig::Init::random;
    std::string dtype = "auto";
    config::Auto<bool> channels_last{}, fused_kernels{};
    void describe(config::Section& section);
  } model;
  AutoencoderConfig autoencoder;
  DataConfig data;
  TransformConfig transform;
  BatchConfig batch;
  Duration duration = Duration::steps(20000);
  OptimConfig optim;
  EmaConfig ema;
  ParallelConfig parallel;
  CheckpointConfig checkpoint;
  LogConfig log;
  RecordConfig record;
  GuardConfig guard;
  config::Auto<int> threads{};

  AutoencoderTrainConfig();
  void describe(config::Section& section);
  LoopConfig loop(const nlohmann::json& identity) const;
};

// Settings that cannot go together, or ask for what this version lacks.
void check(const PreprocessConfig& config, config::Report& report);
void check(const TrainConfig& config, config::Report& report);
void check(const AutoencoderTrainConfig& config, config::Report& report);

}  // namespace millrace
