#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "app_config.h"
#include "millrace/latents/encoding_shape.h"
#include "millrace/models/autoencoder_kl.h"
#include "millrace/models/clip_text.h"
#include "millrace/models/unet_2d_condition.h"
#include "millrace/parallel/flat_layout.h"
#include "millrace/parallel/shard_plan.h"
#include "millrace/parallel/state_memory.h"

// What a run needs of its devices' memory, by the networks' configurations: no weights are read, and there need be no
// machine.
namespace millrace {

// config.json of the run's networks; null where nobody has them.
struct RunShapes {
  nlohmann::json unet, vae, text_encoder;
  std::string unet_file = "unet/config.json";  // for messages
};

class RunMemory {
 public:
  // `encoding`: of the samples. `device`: the kind that trainers have. `program_bytes`: on a CPU, of the process
  // without networks. Refers to `config`.
  RunMemory(const TrainConfig& config, const RunShapes& shapes, EncodingShape encoding, torch::Device device,
            double program_bytes);

  // Bytes on its device, on a CPU all of its memory, of a rank that trains, and has encoders as well where `encodes`.
  double trainer(int micro_batch, const ShardPlan& shards, bool encodes) const;
  // What of that are the tensors of training: those that last, and a micro-batch's.
  struct Tensors {
    StateMemory state;
    std::int64_t activations;
    std::int64_t peak() const { return state.peak(activations); }
  };
  Tensors tensors(int micro_batch, const ShardPlan& shards) const;
  // Of one that only encodes.
  double encoder(int batch_size) const;
  // Of `trainer`, on a CPU: the copy that checkpoints are written from while training goes on. Where there is no room
  // for it, training waits for them.
  double copy_for_checkpoints(const ShardPlan& shards) const;

  // Numbers that the U-Net has.
  std::int64_t unet_elements() const;

  // The largest micro-batch with which a trainer stays within the usable share of `total_bytes`. Error(usage) where not
  // even one image does.
  int fitting_micro_batch(double total_bytes, const ShardPlan& shards, bool encodes) const;

 private:
  double overhead() const;
  double training(int micro_batch, const ShardPlan& shards) const;
  double encoders(int batch_size) const;
  double text_encoder() const;
  double checkpoints(const ShardPlan& shards) const;
  double validation(const ShardPlan& shards) const;
  FlatLayout layout_of(const ShardPlan& shards) const;
  StateMemory state_of(const ShardPlan& shards) const;
  bool on_gpus() const { return device_.is_cuda(); }
  // Of a device's memory: what the plan of it may fill, which knows tensors, not how allocators and cuDNN's workspaces
  // cut memory up; on a CPU the node has other uses for it.
  double usable_share() const { return on_gpus() ? 0.85 : 0.5; }

  const TrainConfig& config_;
  const EncodingShape encoding_;
  const torch::Device device_;
  const double program_bytes_;
  const UNet2DConditionConfig unet_;
  const std::vector<ParameterSpec> unet_parameters_;
  std::optional<AutoencoderKLConfig> vae_;
  std::int64_t vae_parameters_ = 0, text_parameters_ = 0;
  const torch::Dtype train_dtype_, encode_dtype_;
};

// Of a device with so many bytes what one rank may have, if all who share it have as much. `devices`: the name of every
// rank's.
std::int64_t share_of_memory(std::uint64_t bytes, const std::string& device, const std::vector<std::string>& devices);

// The most images, 8,191 at most, for which `bytes` is within the limit; 0 where it is for none.
int fitting_batch(double limit, const std::function<double(int)>& bytes);

}  // namespace millrace
