#include "plan/run_costs.h"

#include "millrace/models/encoder_cost.h"
#include "millrace/models/unet_cost.h"
#include "millrace/nn/device.h"
#include "millrace/text/tokenizer.h"

namespace millrace {

RunCosts::RunCosts(const std::vector<NodeGroup>& cluster, const TrainConfig& config, const RunShapes& shapes)
    : config_(config),
      unet_(UNet2DConditionConfig::from_json(shapes.unet, shapes.unet_file)),
      vae_(AutoencoderKLConfig::from_json(shapes.vae)),
      text_(CLIPTextConfig::from_json(shapes.text_encoder)),
      device_(config.run.device == "cpu" || cluster.front().gpu->is_cpu() ? torch::kCPU : torch::kCUDA),
      latent_side_(vae_.latent_side(config.transform.resolution)),
      memory_(config, shapes, encoding(), device_, static_cast<double>(peak_memory_bytes(torch::kCPU))) {}

double RunCosts::train_rate(const GpuModel& gpu) const {
  constexpr double training_factor = 3;  // backward takes twice what forward takes
  const auto flops = training_factor * unet_forward_flops(unet_, latent_side_, latent_side_, token_count);
  return gpu.train.at(config_.transform.resolution) * 1e12 / flops;
}

double RunCosts::encode_rate(const GpuModel& gpu) const {
  return gpu.encode.at(config_.transform.resolution) * 1e12 / (vae_flops() + text_flops());
}

EncodingShape RunCosts::encoding() const {
  EncodingShape shape{.moments = {2 * vae_.latent_channels, latent_side_, latent_side_}, .text = {token_count}};
  if (!text_on_trainers()) shape.text.push_back(text_.hidden_size);
  return shape;
}

double RunCosts::vae_flops() const {
  return vae_encode_flops(vae_, config_.transform.resolution, config_.transform.resolution);
}

double RunCosts::text_flops() const {
  return text_encode_flops(text_, token_count);
}

}  // namespace millrace
