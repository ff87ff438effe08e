#pragma once
#include <torch/types.h>

#include "millrace/comm/collectives.h"

namespace millrace {

// A contiguous tensor as Collectives take it: float32 and bfloat16 can be added up, others are bytes to them.
Buffer buffer_of(const torch::Tensor& tensor);

}  // namespace millrace
