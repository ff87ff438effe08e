#pragma once
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "millrace/io/safetensors.h"

namespace millrace::e2e {

using Weights = std::map<std::string, std::vector<float>>;

// All fp32 tensors of a safetensors file.
inline Weights read_weights(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  Weights weights;
  for (const auto& info : file.tensors()) {
    if (info.dtype != DType::f32) continue;
    const auto bytes = file.bytes(info);
    auto& values = weights[info.name];
    values.resize(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return weights;
}

// Largest difference of two sets, relative to the largest value of the same tensor.
inline double largest_difference(const Weights& a, const Weights& b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (const auto& [name, left] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.size() != left.size()) return INFINITY;
    double scale = 1e-12, difference = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
      scale = std::max(scale, std::abs(static_cast<double>(left[i])));
      difference = std::max(difference, std::abs(static_cast<double>(left[i]) - found->second[i]));
    }
    worst = std::max(worst, difference / scale);
  }
  return worst;
}

}  // namespace millrace::e2e
