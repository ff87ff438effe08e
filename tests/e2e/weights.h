#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
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

// Overwrites the first number of an fp32 tensor.
inline void set_first_number(const std::filesystem::path& file, const std::string& tensor, float value) {
  std::uint64_t data_bytes = 0, begin = 0;
  {
    const SafetensorsFile weights(file);
    for (const auto& info : weights.tensors()) data_bytes = std::max(data_bytes, info.end);
    begin = weights.info(tensor).begin;
  }
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekp(static_cast<std::streamoff>(std::filesystem::file_size(file) - data_bytes + begin));
  stream.write(reinterpret_cast<const char*>(&value), sizeof value);
}

// Calls compare(left, right) with each tensor of `a` and its own of `b`; false where the two do not have the same ones.
template <class Compare>
bool for_each_pair(const Weights& a, const Weights& b, const Compare& compare) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, left] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.size() != left.size()) return false;
    compare(left, found->second);
  }
  return true;
}

// L2 norm of the difference over the norm of `a`, all tensors together. NOTE [Adam and noise]: parameters whose
// gradient is zero but for rounding (a convolution's bias in front of a norm) move by up to lr per step in a direction
// that rounding decides, so no bound on single values can hold when the order of additions differs.
inline double relative_difference(const Weights& a, const Weights& b) {
  double difference = 0, norm = 0;
  const bool are_pairs = for_each_pair(a, b, [&](const auto& left, const auto& right) {
    for (std::size_t i = 0; i < left.size(); ++i) {
      const double value = left[i], d = value - right[i];
      difference += d * d;
      norm += value * value;
    }
  });
  return are_pairs ? std::sqrt(difference / norm) : INFINITY;
}

// Mean size of the difference over the mean size of `a`, all tensors together: of a few elements whose gradient is
// noise (corners of kernels over images of 2x2, say) it takes less notice than the norm does, of a rule that differs as
// much. After some steps of Adam it is about 1e-2 where all updates differ.
inline double mean_difference(const Weights& a, const Weights& b) {
  double difference = 0, size = 0;
  const bool are_pairs = for_each_pair(a, b, [&](const auto& left, const auto& right) {
    for (std::size_t i = 0; i < left.size(); ++i) {
      difference += std::abs(static_cast<double>(left[i]) - right[i]);
      size += std::abs(static_cast<double>(left[i]));
    }
  });
  return are_pairs ? difference / size : INFINITY;
}

// Largest difference of two sets, relative to the largest value of the same tensor.
inline double largest_difference(const Weights& a, const Weights& b) {
  double worst = 0;
  const bool are_pairs = for_each_pair(a, b, [&](const auto& left, const auto& right) {
    double scale = 1e-12, difference = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
      scale = std::max(scale, std::abs(static_cast<double>(left[i])));
      difference = std::max(difference, std::abs(static_cast<double>(left[i]) - right[i]));
    }
    worst = std::max(worst, difference / scale);
  });
  return are_pairs ? worst : INFINITY;
}

}  // namespace millrace::e2e
