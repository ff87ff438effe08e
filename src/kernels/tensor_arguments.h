#pragma once
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/types.h>

#include <optional>
#include <utility>
#include <vector>

#include "element.h"
#include "gpu.h"

// From tensors to the arguments of kernels. What does not fit is a c10::Error that names the tensor.
namespace millrace::kernels {

using torch::Tensor;

inline Element element_of(const Tensor& tensor, const char* name) {
  switch (tensor.scalar_type()) {
    case torch::kFloat32:
      return Element::f32;
    case torch::kBFloat16:
      return Element::bf16;
    case torch::kFloat16:
      return Element::f16;
    default:
      TORCH_CHECK(false, name, " has type ", tensor.scalar_type(), ", not float32, bfloat16 or float16");
  }
}

inline void check_device(const Tensor& tensor, const char* name, const Tensor& x) {
  TORCH_CHECK(tensor.device() == x.device(), name, " is on ", tensor.device(), ", not on ", x.device());
}

inline void check_shape(const Tensor& tensor, const char* name, at::IntArrayRef sizes) {
  TORCH_CHECK(tensor.sizes() == sizes, name, " has shape ", tensor.sizes(), ", not ", sizes);
}

inline void check_contiguous(const Tensor& tensor, const char* name) {
  TORCH_CHECK(tensor.is_contiguous(), name, " is not contiguous");
}

inline void check_numbers(const Tensor& tensor, const char* name, torch::Dtype type, const Tensor& x) {
  TORCH_CHECK(tensor.scalar_type() == type, name, " has type ", tensor.scalar_type(), ", not ", type);
  check_contiguous(tensor, name);
  check_device(tensor, name, x);
}

// Before autograd sees it.
inline void check_defined(const Tensor& tensor, const char* name) {
  TORCH_CHECK(tensor.defined(), name, " is undefined");
}

// A small input beside x; a reader of nothing where it is undefined.
inline Values values_of(const Tensor& tensor, const char* name, at::IntArrayRef sizes, const Tensor& x) {
  if (!tensor.defined()) return {};
  check_shape(tensor, name, sizes);
  check_contiguous(tensor, name);
  check_device(tensor, name, x);
  return {tensor.const_data_ptr(), element_of(tensor, name)};
}

inline Values parameter_of(const Tensor& tensor, const char* name, std::int64_t channels, const Tensor& x) {
  return values_of(tensor, name, {channels}, x);
}

inline Target target_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.mutable_data_ptr(), element_of(tensor, "a gradient")};
}

// For the gradient of an input, if it is wanted.
inline Tensor gradient_for(const Tensor& input) {
  return input.defined() && input.requires_grad() ? at::empty_like(input) : Tensor();
}

// Autograd wants inputs that are left out as an empty optional.
inline std::optional<Tensor> if_defined(const Tensor& input) {
  return input.defined() ? std::optional(input) : std::nullopt;
}

inline Tensor make_workspace(std::int64_t bytes, const Tensor& x) {
  return at::empty({bytes}, x.options().dtype(torch::kByte));
}

inline Tensor make_statistics(at::IntArrayRef sizes, const Tensor& x) {
  return at::empty(sizes, x.options().dtype(torch::kFloat32).memory_format(torch::MemoryFormat::Contiguous));
}

inline std::pair<Tensor, Tensor> pair_of(std::vector<Tensor> two) {
  return {std::move(two[0]), std::move(two[1])};
}

inline void check_first_derivative() {
  TORCH_CHECK(!torch::GradMode::is_enabled(), "the kernels have no second derivatives");
}

// The twin of the host, or the kernel on LibTorch's stream. On LibTorch's meta device there is nothing to compute
// (tests/train/device_step_test.cpp).
template <class Arguments>
void run(const Tensor& x, const Arguments& arguments) {
  TORCH_CHECK(x.is_cpu() || x.is_cuda() || x.is_meta(), "tensors are on ", x.device(), ", not on a CPU or a CUDA GPU");
  if (x.is_meta()) return;
  if (x.is_cpu()) return run_cpu(arguments);
  const c10::DeviceGuard guard(x.device());
  run_cuda(arguments, current_stream(x.device().index()));
  check_launches();
}

}  // namespace millrace::kernels
