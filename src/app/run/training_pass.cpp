#include "run/training_pass.h"

#include "millrace/nn/device.h"
#include "millrace/nn/layers.h"

namespace millrace {

UNetPass training_pass(const ModelConfig& model, int micro_batch, std::int64_t height, std::int64_t width,
                       torch::Device device) {
  const auto dtype = parse_dtype(model.dtype, device);
  const bool has_kernels = nn::has_own_kernels(device, dtype, model.fused_kernels.value_or(true));
  return {.batch = micro_batch,
          .height = height,
          .width = width,
          .dtype = dtype,
          .gradient_checkpointing = model.gradient_checkpointing,
          .device = device.type(),
          .channels_last = model.channels_last.value_or(has_kernels),
          .fused_kernels = model.fused_kernels.value_or(has_kernels),
          .joined_projections = model.fused_kernels.value_or(device.is_cuda())};  // a little less with full_shard
}

static bool has_passes_by_kernels(const TrainConfig& config, const ShardPlan& shards) {
  return shards.shards * shards.replicas > 1 || !config.record.steps.empty();
}

bool suits_cuda_graphs(const UNet2DConditionConfig& unet, const config::Auto<bool>& fused_kernels,
                       torch::Device device) {
  return device.is_cuda() && unet.dropout == 0 && fused_kernels.value_or(true);
}

bool uses_cuda_graphs(const TrainConfig& config, const UNet2DConditionConfig& unet, const ShardPlan& shards,
                      torch::Device device) {
  return config.model.cuda_graphs.value_or(suits_cuda_graphs(unet, config.model.fused_kernels, device) &&
                                           !has_passes_by_kernels(config, shards));
}

double passes_in_memory(const TrainConfig& config, const UNet2DConditionConfig& unet, const ShardPlan& shards,
                        torch::Device device) {
  constexpr double without_gradients = 0.15;  // 0.11 of SD 2's U-Net on an H200, 64 images of 256 px
  if (!uses_cuda_graphs(config, unet, shards, device) || shards.splits_parameters()) return 1;
  if (has_passes_by_kernels(config, shards)) return 2;
  return 1 + without_gradients;
}

}  // namespace millrace
