#pragma once
#include <torch/types.h>

namespace millrace {

// Takes the memory from under a tensor and all its views, as FSDP's resize_(0) does: sizes and strides stay, and so
// does what autograd has saved of them. Reading it is undefined until it has memory, and contents, again.
void release_memory(const torch::Tensor& tensor);
void allocate_memory(const torch::Tensor& tensor);
bool has_memory(const torch::Tensor& tensor);

}  // namespace millrace
