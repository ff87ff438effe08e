#pragma once
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <tuple>

#include "millrace/nn/device.h"

// Tests that run on the CPU and, where there is one, on a GPU. Their names begin with Devices/ and have Cpu or Cuda
// behind the last slash: by that scripts/bundle and scripts/gpu_check find them.
namespace millrace::test {

inline std::string name_of(torch::DeviceType type) {
  return type == torch::kCPU ? "Cpu" : "Cuda";
}

inline torch::DeviceType device_type_of(torch::DeviceType parameter) {
  return parameter;
}
template <class... Others>
torch::DeviceType device_type_of(const std::tuple<torch::DeviceType, Others...>& parameter) {
  return std::get<0>(parameter);
}

// `Parameter`: the device's type, or a tuple that begins with it.
template <class Parameter = torch::DeviceType>
class OnDevices : public testing::TestWithParam<Parameter> {
 protected:
  void SetUp() override {
    if (is_cuda() && gpu_count() == 0) GTEST_SKIP() << "no GPU";
  }
  bool is_cuda() const { return device_type_of(this->GetParam()) == torch::kCUDA; }
  // As a run has it: float32 without TF32. But tests call each of hundreds of shapes a few times, for which cuDNN would
  // try its kernels longer than it runs them.
  torch::Device device(int local_rank = 0) const {
    const auto device = resolve_device(is_cuda() ? "cuda" : "cpu", local_rank);
    at::globalContext().setBenchmarkCuDNN(false);
    return device;
  }
};

using OnDevice = OnDevices<>;

inline auto all_devices() {
  return testing::Values(torch::kCPU, torch::kCUDA);
}

inline std::string device_in_name(const testing::TestParamInfo<torch::DeviceType>& test) {
  return name_of(test.param);
}

}  // namespace millrace::test

#define MILLRACE_ON_DEVICES(suite) \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, millrace::test::all_devices(), millrace::test::device_in_name)
