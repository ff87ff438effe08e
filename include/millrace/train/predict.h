#pragma once
#include <vector>

#include "millrace/diffusion/objective.h"
#include "millrace/models/unet_2d_condition.h"

namespace millrace {

// What the U-Net, whose weights are of `dtype`, answers to a micro-batch: (B, 4, h, w).
inline torch::Tensor predict(UNet2DConditionModel& unet, const StepInput& input, torch::Dtype dtype) {
  return unet->forward(input.noisy.to(dtype), input.timesteps, input.text.to(dtype));
}

// What prediction and loss need of a micro-batch, the U-Net's part in its `dtype`; and the micro-batch that has nothing
// else.
inline std::vector<torch::Tensor> pass_inputs(const StepInput& input, torch::Dtype dtype) {
  return {input.noisy.to(dtype), input.timesteps, input.text.to(dtype), input.target, input.weight};
}
inline StepInput step_input(const std::vector<torch::Tensor>& inputs) {
  StepInput input;
  input.noisy = inputs[0];
  input.timesteps = inputs[1];
  input.text = inputs[2];
  input.target = inputs[3];
  input.weight = inputs[4];
  return input;
}

}  // namespace millrace
