#pragma once
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/utils.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cpu_launch.h"

namespace millrace::kernels {

// Every test runs the twins on the CPU and, where there is a GPU, the kernels.
class OnDevice : public testing::TestWithParam<torch::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == torch::kCUDA && !torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
    torch::manual_seed(11);
  }
  torch::Device device() const { return torch::Device(GetParam()); }
  bool is_cpu() const { return GetParam() == torch::kCPU; }
};

inline std::string device_name(const testing::TestParamInfo<torch::DeviceType>& device) {
  return device.param == torch::kCPU ? "Cpu" : "Cuda";
}

#define MILLRACE_TEST_KERNELS(suite) \
  INSTANTIATE_TEST_SUITE_P(Kernels, suite, testing::Values(torch::kCPU, torch::kCUDA), device_name)

inline const std::vector<torch::Dtype> all_types{torch::kFloat32, torch::kBFloat16, torch::kFloat16};

// Distance of neighbouring numbers around 1.
inline double spacing(torch::Dtype type) {
  return type == torch::kFloat32 ? 0x1p-23 : type == torch::kBFloat16 ? 0x1p-7 : 0x1p-10;
}

inline double largest(const torch::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.detach().abs().max().item<double>();
}

inline double error_against(const torch::Tensor& actual, const torch::Tensor& exact) {
  return largest(actual.detach().cpu().to(torch::kFloat64) - exact.cpu());
}

// What three ways give for the same input: ours and ATen's in the type at hand, ATen's in float64.
struct Results {
  std::vector<torch::Tensor> ours, atens, exact;
};

// float32: 1e-5 of the largest number of a tensor. 16 bits: at most half as much again as ATen's own error, and one
// rounding of the largest number.
inline void expect_close(const Results& results, torch::Dtype type, const std::string& what) {
  ASSERT_EQ(results.ours.size(), results.exact.size());
  for (std::size_t i = 0; i < results.ours.size(); ++i) {
    const auto& exact = results.exact[i];
    ASSERT_EQ(results.ours[i].sizes(), exact.sizes()) << what << ", tensor " << i;
    const double scale = largest(exact), error = error_against(results.ours[i], exact);
    const double atens = error_against(results.atens[i], exact);
    const double bound = type == torch::kFloat32 ? 1e-5 * scale : 1.5 * atens + spacing(type) / 2 * scale;
    EXPECT_LE(error, bound) << what << ", " << type << ", tensor " << i << ": scale " << scale << ", error of ATen "
                            << atens;
    EXPECT_FALSE(results.ours[i].isnan().any().item<bool>()) << what << ", tensor " << i;
  }
}

// Results of run() are the same bits each time, and on the CPU also with threads and blocks in the opposite order.
template <class Run>
void expect_same_bits(bool is_cpu, const Run& run) {
  const std::vector<torch::Tensor> first = run(), again = run();
  cpu_runs_backwards = is_cpu;
  const std::vector<torch::Tensor> backwards = run();
  cpu_runs_backwards = false;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(torch::equal(first[i], again[i])) << "tensor " << i;
    EXPECT_TRUE(torch::equal(first[i], backwards[i])) << "tensor " << i << ", threads in the opposite order";
  }
}

// A leaf of another type with the same numbers; undefined stays.
inline torch::Tensor leaf(const torch::Tensor& tensor, torch::Dtype type, torch::Device device) {
  return tensor.defined() ? tensor.detach().to(device, type, false, true).requires_grad_() : tensor;
}

// The same numbers and strides `offset` elements after an aligned address.
inline torch::Tensor at_offset(const torch::Tensor& tensor, std::int64_t offset) {
  const auto memory = torch::empty({tensor.numel() + offset}, tensor.options());
  const auto view = memory.as_strided(tensor.sizes(), tensor.strides(), offset);
  return view.copy_(tensor.detach()).detach().requires_grad_(tensor.requires_grad());
}

inline void append_gradients(std::vector<torch::Tensor>& to, const std::vector<torch::Tensor>& leaves) {
  for (const auto& one : leaves)
    if (one.defined()) to.push_back(one.grad());
}

template <class Call>
void expect_error(const Call& call, const std::string& part) {
  try {
    call();
    FAIL() << "no error with '" << part << "'";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what_without_backtrace();
  }
}

}  // namespace millrace::kernels
