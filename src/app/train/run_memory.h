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

// The device memory that a run needs, from the networks' configurations: no weights are read, and the machine need not
// be there.
namespace millrace {

// config.json of each of the run's networks; null if no rank has it.
struct RunShapes {
  nlohmann::json unet, vae, text_encoder;
  std::string unet_file = "unet/config.json";  // for messages
};

class RunMemory {
 public:
  // `encoding`: of the samples. `device`: the kind that trainers have. `program_bytes`: on a CPU, memory of the process
  // without networks. Refers to `config`.
  RunMemory(const TrainConfig& config, const RunShapes& shapes, EncodingShape encoding, torch::Device device,
            double program_bytes);

  // Bytes that a trainer needs on its device (on a CPU: all of its memory), with encoders if it `encodes` as well.
  double trainer(int micro_batch, const ShardPlan& shards, bool encodes) const;
  // The part of that which is tensors of training: those that last, and a micro-batch's.
  struct Tensors {
    StateMemory state;
    std::int64_t activations;
    std::int64_t peak() const { return state.peak(activations); }
  };
  Tensors tensors(int micro_batch, const ShardPlan& shards) const;
  // Bytes that a rank needs that only encodes.
  double encoder(int batch_size) const;
  // The part of trainer() that is, on a CPU, the copy that checkpoints are written from while training goes on. Without
  // room for it training waits for them.
  double copy_for_checkpoints(const ShardPlan& shards) const;

  // Number of parameters of the U-Net.
  std::int64_t unet_elements() const;

  // The largest micro-batch with which a trainer needs no more than the usable share of `total_bytes`. Error(usage) if
  // not even one image fits.
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
  // The fraction of a device's memory that a plan may fill: it knows tensors, but not how allocators and cuDNN's
  // workspaces cut memory up, and on a CPU the node has other uses for it.
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

// What one rank may have of a device with `bytes` of memory if all ranks that share it get as much. `devices`: the name
// of every rank's device.
std::int64_t share_of_memory(std::uint64_t bytes, const std::string& device, const std::vector<std::string>& devices);

// The largest number of images, 8,191 at most, for which `bytes` is within the limit; 0 if none is.
int fitting_batch(double limit, const std::function<double(int)>& bytes);

}  // namespace millrace
