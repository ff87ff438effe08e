#pragma once
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "devices.h"
#include "test_data.h"

// The C++ half of scripts/goldens/models.py: weights and inputs made from names, outputs and gradients compared.
namespace millrace::golden {

using Json = nlohmann::json;
using Shape = std::vector<std::int64_t>;

// A device and the name of a reference.
class OnDevices : public test::OnDevices<std::tuple<torch::DeviceType, const char*>> {
 protected:
  std::string name() const { return std::get<1>(GetParam()); }
  // Largest relative errors of outputs allowed. A GPU's kernels add in another order, its sine and exponential round
  // otherwise, and of a timestep of 1000 the angle is known to 3e-5 only.
  double output_tolerance() const { return is_cuda() ? 1e-4 : 1e-5; }
  // ... and of gradients, ten times as much on either device: each goes through as many layers once more, and is a sum
  // over all pixels of terms that nearly cancel.
  double gradient_tolerance() const { return is_cuda() ? 1e-3 : 1e-4; }
};

inline std::string device_and_name(const testing::TestParamInfo<OnDevices::ParamType>& test) {
  const auto& [device, name] = test.param;
  return test::name_of(device) + "_" + name;
}

#define MILLRACE_GOLDENS_ON_DEVICES(suite, ...)                                                                 \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, testing::Combine(test::all_devices(), testing::Values(__VA_ARGS__)), \
                           golden::device_and_name)

inline Json load(const std::string& name) {
  const std::string path = (test::data_dir() / "models" / (name + ".json")).string();
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return Json::parse(file);
}

// FNV-1a.
inline std::uint32_t name_hash(const std::string& name) {
  std::uint32_t value = 0x811C9DC5;
  for (const char byte : name) value = (value ^ static_cast<unsigned char>(byte)) * 0x01000193;
  return value;
}

// Uniform in [-1, 1): the finaliser of splitmix64 over (hash of the name, index).
inline torch::Tensor noise(const std::string& name, const Shape& shape) {
  auto tensor = torch::empty(shape);
  const std::uint64_t base = std::uint64_t{name_hash(name)} << 32;
  float* out = tensor.data_ptr<float>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    std::uint64_t x = base + static_cast<std::uint64_t>(i);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    x ^= x >> 31;
    out[i] = static_cast<float>(x >> 40) / 8388608.0f - 1;
  }
  return tensor;
}

inline torch::Tensor unit(const std::string& name, const Shape& shape) {
  return noise(name, shape) * static_cast<float>(std::sqrt(3.0));
}

inline void fill_weights(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    const std::string& name = item.key();
    torch::Tensor parameter = item.value();
    const auto values = noise(name, parameter.sizes().vec());
    if (parameter.dim() > 1) {
      const bool embedding = name.find("embedding.weight") != std::string::npos;
      const double fan_in = static_cast<double>(parameter[0].numel());
      parameter.copy_(embedding ? values : values * static_cast<float>(std::sqrt(3 / fan_in)));
    } else {
      parameter.copy_(name.ends_with("weight") ? 1 + values * 0.25f : values * 0.125f);
    }
  }
}

// Largest difference, as a share of the largest expected value.
inline double relative_error(const torch::Tensor& actual, const Json& expected) {
  EXPECT_EQ(actual.sizes().vec(), expected["shape"].get<Shape>());
  const auto numbers = expected["values"].get<std::vector<double>>();
  const auto reference = torch::tensor(numbers, torch::kDouble).view(expected["shape"].get<Shape>());
  const auto difference = (actual.detach().to(torch::kCPU, torch::kDouble) - reference).abs().max();
  return (difference / reference.abs().max()).item<double>();
}

// Every parameter's name, shape and gradient: largest value, samples and a checksum over all elements. Errors count as
// a share of the tensor's largest gradient; tensors whose gradient is nothing but rounding are left out.
inline void expect_gradients(torch::nn::Module& module, const Json& expected, double tolerance) {
  double overall = 0;
  for (const auto& [name, gradient] : expected.items()) overall = std::max(overall, gradient["largest"].get<double>());
  const auto parameters = module.named_parameters();
  EXPECT_EQ(parameters.size(), expected.size());
  for (const auto& item : parameters) {
    const std::string& name = item.key();
    ASSERT_TRUE(expected.contains(name)) << name << " is not a parameter of the reference";
    const Json& reference = expected[name];
    ASSERT_EQ(item.value().sizes().vec(), reference["shape"].get<Shape>()) << name;
    const auto gradient = item.value().grad().detach().to(torch::kCPU, torch::kDouble).contiguous().flatten();
    const double largest = reference["largest"];
    const double allowed = tolerance * largest + 1e-7 * overall;
    EXPECT_NEAR(gradient.abs().max().item<double>(), largest, allowed) << name;
    for (const auto& [position, value] : reference["samples"].items()) {
      EXPECT_NEAR(gradient[std::stol(position)].item<double>(), value.get<double>(), allowed) << name << position;
    }
    const auto checksum = (gradient * noise("checksum", {gradient.numel()}).to(torch::kDouble)).sum().item<double>();
    EXPECT_NEAR(checksum, reference["checksum"].get<double>(), allowed * static_cast<double>(gradient.numel())) << name;
  }
}

}  // namespace millrace::golden
