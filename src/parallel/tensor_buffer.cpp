#include "millrace/parallel/tensor_buffer.h"

namespace millrace {

Buffer buffer_of(const torch::Tensor& tensor) {
  const auto type = tensor.scalar_type() == torch::kFloat32    ? WireType::f32
                    : tensor.scalar_type() == torch::kBFloat16 ? WireType::bf16
                                                               : WireType::byte;
  const auto count = type == WireType::byte ? tensor.nbytes() : static_cast<std::size_t>(tensor.numel());
  return {tensor.data_ptr(), count, type};
}

}  // namespace millrace
