#pragma once
#include <torch/types.h>

#include <functional>
#include <vector>

namespace millrace::nn {

using TensorList = std::vector<torch::Tensor>;

// Activation checkpointing (Chen et al., "Training deep nets with sublinear memory cost"): computes `segment(inputs)`
// without keeping what its backward needs, and computes it again during backward. Gradients of parameters used inside
// are added to their .grad(), so run backward(), not grad(). At least one input must require a gradient, all must be
// defined. With `replay_random` dropout draws the same numbers the second time.
TensorList checkpoint(std::function<TensorList(const TensorList&)> segment, const TensorList& inputs,
                      bool replay_random);

}  // namespace millrace::nn
