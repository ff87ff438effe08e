#pragma once
#include <functional>
#include <nlohmann/json.hpp>

#include "app_config.h"
#include "millrace/models/autoencoder_kl.h"
#include "millrace/models/clip_text.h"
#include "millrace/models/unet_2d_condition.h"
#include "millrace/parallel/flat_layout.h"
#include "millrace/parallel/shard_plan.h"
#include "millrace/parallel/state_memory.h"

// What a run needs of its devices' memory, by the networks' configurations: before there is a network, or a machine.
namespace millrace {

// config.json of the run's networks.
struct RunShapes {
  nlohmann::json unet, vae, text_encoder;
};

class RunMemory {
 public:
  // `device`: a kind, as all ranks have it. Keeps `config`.
  RunMemory(const TrainConfig& config, const RunShapes& shapes, torch::Device device);

  // Bytes of a rank. What it has on its device beside the tensors of its roles:
  double overhead() const;
  // A trainer's tensors; on a CPU, where all memory is one, also what lies in the host's.
  double trainer(int micro_batch, const ShardPlan& shards) const;
  double encoder() const;

 private:
  double text_encoder() const;
  double checkpoint(const StateMemory& state, const ShardPlan& shards) const;
  double validation(const ShardPlan& shards) const;
  StateMemory state_of(const ShardPlan& shards) const;
  bool on_gpus() const { return device_.is_cuda(); }
  bool text_on_trainers() const { return config_.encode.text_on == EncodeConfig::TextOn::trainer; }

  const TrainConfig& config_;
  const double program_bytes_;  // before any network is made
  const torch::Device device_;
  const UNet2DConditionConfig unet_;
  const AutoencoderKLConfig vae_;
  const CLIPTextConfig text_;
  const std::vector<ParameterSpec> unet_parameters_;
  const std::int64_t vae_parameters_, text_parameters_;
  const torch::Dtype train_dtype_, encode_dtype_;
  const std::int64_t latent_side_;
};

// The most images for which `bytes` fits; 0 where not even one does.
int fitting_batch(double limit, const std::function<double(int)>& bytes);

}  // namespace millrace
