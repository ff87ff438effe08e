#pragma once
#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "app_config.h"
#include "millrace/latents/encoding_shape.h"
#include "millrace/models/autoencoder_kl.h"
#include "millrace/models/clip_text.h"
#include "millrace/models/unet_config.h"
#include "plan/cluster.h"
#include "train/run_memory.h"

namespace millrace {

// What decides about a run: its networks in numbers.
class RunCosts {
 public:
  // Refers to `config`.
  RunCosts(const std::vector<NodeGroup>& cluster, const TrainConfig& config, const RunShapes& shapes);

  bool on_gpus() const { return device_.is_cuda(); }
  const RunMemory& memory() const { return memory_; }

  // Also with encode.cache: nobody knows here what is in it.
  bool encodes() const { return config_.data.train.type != SourceConfig::Type::latents; }
  bool text_on_trainers() const { return config_.encode.text_on == EncodeConfig::TextOn::trainer; }

  // Images a second of the U-Net alone, and of VAE and text encoder together.
  double train_rate(const GpuModel& gpu) const;
  double encode_rate(const GpuModel& gpu) const;
  // The text encoder's part of the latter's time.
  double text_share() const { return text_flops() / (vae_flops() + text_flops()); }

 private:
  EncodingShape encoding() const;
  double vae_flops() const;
  double text_flops() const;

  const TrainConfig& config_;
  const UNet2DConditionConfig unet_;
  const AutoencoderKLConfig vae_;
  const CLIPTextConfig text_;
  const torch::Device device_;
  const std::int64_t latent_side_;
  const RunMemory memory_;
};

}  // namespace millrace
