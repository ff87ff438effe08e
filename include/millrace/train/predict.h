#pragma once
#include "millrace/diffusion/objective.h"
#include "millrace/models/unet_2d_condition.h"

namespace millrace {

// What the U-Net, whose weights are of `dtype`, answers to a micro-batch: (B, 4, h, w).
inline torch::Tensor predict(UNet2DConditionModel& unet, const StepInput& input, torch::Dtype dtype) {
  return unet->forward(input.noisy.to(dtype), input.timesteps, input.text.to(dtype));
}

}  // namespace millrace
