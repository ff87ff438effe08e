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
  torch::DeviceType device = torch::kCPU;
  bool channels_last = false, fused_kernels = false;  // fused: norms, GEGLU; on CPUs by nn/cpu
  bool joined_projections = false;                    // nn::LinearImpl::together, of src/kernels
};

// The most bytes that tensors of such a pass hold at once, beside the parameters and the buckets of their gradients.
// Computed from shapes alone. The workspace that a GPU's convolutions and matrix products want is not counted.
std::int64_t unet_activation_bytes(const UNet2DConditionConfig& config, const UNetPass& pass);

// Multiplications and additions of one sample's forward pass: a multiply-add counts as two. Convolutions, linear layers
// and attention, without the few of the timestep's embedding; backward takes twice as many.
double unet_forward_flops(const UNet2DConditionConfig& config, std::int64_t height, std::int64_t width,
                          std::int64_t tokens = 77);

}  // namespace millrace
