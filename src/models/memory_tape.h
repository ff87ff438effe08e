#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "millrace/models/resample.h"

namespace millrace {

// Bytes that are in use for as long as somebody holds this.
using Allocation = std::shared_ptr<const std::int64_t>;

// The size of a feature map (B, channels, h, w), or of tokens (B, h * w, channels).
struct FeatureMap {
  std::int64_t channels;
  Extent size;
  Allocation memory;
  std::shared_ptr<Allocation> gradient;  // as far as it has been added up; null where none is wanted
};
using FeatureMaps = std::vector<FeatureMap>;

// Autograd on sizes: follows what a forward and a backward pass hold in memory at once, as LibTorch's engine does it.
// What a variable of the forward pass refers to is in use, and what backward needs of it until that has been there;
// backward goes through the operations from the last to the first; gradients are in use until they are passed on.
class MemoryTape {
 public:
  // `pixel_bytes`: of one pixel in one channel of the whole batch.
  explicit MemoryTape(std::int64_t pixel_bytes) : pixel_bytes_(pixel_bytes) {}

  Allocation allocate(std::int64_t bytes);
  // The most that was in use at once.
  std::int64_t peak() const { return peak_; }

  std::int64_t map_bytes(std::int64_t channels, Extent size) const;
  FeatureMap make_map(std::int64_t channels, Extent size);
  // An operation's output. Its backward needs `saved`, makes a gradient of each input, and has `scratch` bytes of its
  // own meanwhile.
  FeatureMap apply(std::int64_t channels, Extent size, const FeatureMaps& inputs, std::vector<Allocation> saved = {},
                   std::int64_t scratch = 0);
  // A sum or a concatenation: gradients of the inputs are the output's or views of it.
  FeatureMap join(std::int64_t channels, Extent size, const FeatureMaps& inputs);

  using Segment = std::function<FeatureMaps(const FeatureMaps&)>;
  // As nn::checkpoint: keeps the inputs only, and applies `segment` again in backward.
  FeatureMaps checkpoint(const Segment& segment, const FeatureMaps& inputs);

  // Through everything since the tape began, from a gradient of the last output.
  void backward(const FeatureMap& output);

 private:
  void record(std::function<void()> backward);
  void run_backwards(std::size_t left);

  const std::int64_t pixel_bytes_;
  std::int64_t in_use_ = 0, peak_ = 0;
  bool records_ = true;
  std::vector<std::function<void()>> backwards_;  // of the operations, with what they save
};

}  // namespace millrace
