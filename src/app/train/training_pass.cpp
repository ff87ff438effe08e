#include "train/training_pass.h"

#include "millrace/core/error.h"
#include "millrace/nn/device.h"
#include "millrace/nn/layers.h"

namespace millrace {

UNetPass training_pass(const ModelConfig& model, int micro_batch, std::int64_t height, std::int64_t width,
                       torch::Device device) {
  const auto dtype = parse_dtype(model.dtype, device);
  const bool kernels_are_on = model.fused_kernels.value_or(true);
  return {.batch = micro_batch,
          .height = height,
          .width = width,
          .dtype = dtype,
          .gradient_checkpointing = model.gradient_checkpointing,
          .device = device.type(),
          .channels_last = model.channels_last.value_or(nn::prefers_channels_last(device, dtype, kernels_are_on)),
          .fused_kernels = model.fused_kernels.value_or(device.is_cuda() || dtype == torch::kFloat32),
          .joined_projections = model.fused_kernels.value_or(device.is_cuda())};  // a little less with full_shard
}

namespace {

std::string why_no_graph(const GraphCase& c) {
  if (!c.device.is_cuda()) return fmt::format("the trainer on rank {} computes on a CPU", c.rank);
  if (c.dropout > 0) return "a graph would repeat this U-Net's dropout";
  if (c.shards.splits_parameters()) return "with full_shard weights come and go within a pass";
  return {};
}

}  // namespace

GraphPlan plan_cuda_graphs(const config::Auto<bool>& asked, const GraphCase& c) {
  if (!asked.value_or(true)) return {};
  if (const auto why = why_no_graph(c); !why.empty()) return {.why_not = why};
  const bool has_passes_by_kernels = c.shards.shards * c.shards.replicas > 1 || c.shows_kernels;
  return {.used = asked.value_or(!has_passes_by_kernels && c.fused_kernels.value_or(true)),
          .has_passes_by_kernels = has_passes_by_kernels};
}

GraphPlan plan_cuda_graphs(const TrainConfig& config, const UNet2DConditionConfig& unet, const ShardPlan& shards,
                           torch::Device device, int rank) {
  return plan_cuda_graphs(config.model.cuda_graphs, {.device = device,
                                                     .rank = rank,
                                                     .dropout = unet.dropout,
                                                     .fused_kernels = config.model.fused_kernels,
                                                     .shards = shards,
                                                     .shows_kernels = !config.record.steps.empty()});
}

void check_cuda_graphs(const config::Auto<bool>& asked, const GraphPlan& graphs) {
  if (asked.value_or(false) && !graphs.used)
    throw Error(Exit::usage, fmt::format("model.cuda_graphs=true, and {}", graphs.why_not), "model.cuda_graphs=false");
}

double passes_in_memory(const TrainConfig& config, const UNet2DConditionConfig& unet, const ShardPlan& shards,
                        torch::Device device) {
  constexpr double without_gradients = 0.15;  // 0.11 of SD 2's U-Net on an H200, 64 images of 256 px
  const auto graphs = plan_cuda_graphs(config, unet, shards, device);
  if (!graphs.used) return 1;
  return graphs.has_passes_by_kernels ? 2 : 1 + without_gradients;
}

}  // namespace millrace
