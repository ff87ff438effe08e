#pragma once
#include <torch/types.h>

#include <cstdint>

#include "millrace/models/unet_config.h"

namespace millrace {

// One forward and backward pass of a U-Net.
struct UNetPass {
  std::int64_t batch;          // samples of the micro-batch
  std::int64_t height, width;  // of the latents
  torch::Dtype dtype = torch::kFloat32;
  bool gradient_checkpointing = false;
  std::int64_t tokens = 77;
};

// The most bytes that tensors of such a pass hold at once on the CPU, beside the parameters and the buckets of their
// gradients. Computed from shapes alone. On a GPU it is nearly the same: convolutions want a workspace there, which is
// not counted, and in float32 attention over few tokens keeps less.
std::int64_t unet_activation_bytes(const UNet2DConditionConfig& config, const UNetPass& pass);

}  // namespace millrace
