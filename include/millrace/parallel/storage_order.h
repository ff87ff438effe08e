#pragma once
#include <torch/types.h>

#include "millrace/parallel/flat_layout.h"

namespace millrace {

// The elements of a parameter as a bucket holds them: flat, those of a `channels_last` weight in the order O, H, W, I.
torch::Tensor in_storage_order(const torch::Tensor& logical, bool channels_last);
// The reverse, a view.
torch::Tensor from_storage_order(const torch::Tensor& flat, const std::vector<std::int64_t>& shape, bool channels_last);
// A parameter in its bucket, in its own shape: a view.
torch::Tensor view_into(const torch::Tensor& bucket, const Placement& placement, const ParameterSpec& spec);

}  // namespace millrace
