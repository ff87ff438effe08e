#pragma once
#include <torch/types.h>

#include "millrace/comm/collectives.h"

namespace millrace {

// A contiguous tensor as a Buffer: float32 and bfloat16 can be summed, others are mere bytes.
Buffer buffer_of(const torch::Tensor& tensor);

}  // namespace millrace
