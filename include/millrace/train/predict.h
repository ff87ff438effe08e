#pragma once
#include <vector>

#include "millrace/diffusion/objective.h"
#include "millrace/models/unet_2d_condition.h"

namespace millrace {

// The U-Net's prediction for a micro-batch, (B, 4, h, w). `dtype`: of its weights.
inline torch::Tensor predict(UNet2DConditionModel& unet, const StepInput& input, torch::Dtype dtype) {
  return unet->forward(input.noisy.to(dtype), input.timesteps, input.text.to(dtype));
}

// The tensors of a micro-batch that prediction and loss need, the U-Net's inputs cast to `dtype`; and the reverse, a
// StepInput with only these set.
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
