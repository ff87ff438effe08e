#include "memory_tape.h"

#include <algorithm>
#include <utility>

namespace millrace {

Allocation MemoryTape::allocate(std::int64_t bytes) {
  in_use_ += bytes;
  peak_ = std::max(peak_, in_use_);
  const auto release = [this](const std::int64_t* size) {
    in_use_ -= *size;
    std::default_delete<const std::int64_t>()(size);
  };
  return {new std::int64_t(bytes), release};
}

std::int64_t MemoryTape::map_bytes(std::int64_t channels, Extent size) const {
  return channels * size.height * size.width * pixel_bytes_;
}

FeatureMap MemoryTape::make_map(std::int64_t channels, Extent size) {
  return {channels, size, allocate(map_bytes(channels, size)), std::make_shared<Allocation>()};
}

FeatureMap MemoryTape::apply(std::int64_t channels, Extent size, const FeatureMaps& inputs,
                             std::vector<Allocation> saved, std::int64_t scratch) {
  auto output = make_map(channels, size);
  std::vector<std::pair<std::shared_ptr<Allocation>, std::int64_t>> wanted;
  for (const auto& input : inputs)
    if (input.gradient) wanted.emplace_back(input.gradient, *input.memory);
  record([this, wanted, saved = std::move(saved), scratch, gradient = output.gradient] {
    for (const auto& [sum, bytes] : wanted) *sum = allocate(bytes);  // takes the place of what has arrived before
    allocate(scratch);
    gradient->reset();
  });
  return output;
}

FeatureMap MemoryTape::join(std::int64_t channels, Extent size, const FeatureMaps& inputs) {
  auto output = make_map(channels, size);
  std::vector<std::shared_ptr<Allocation>> wanted;
  for (const auto& input : inputs) wanted.push_back(input.gradient);
  record([wanted, gradient = output.gradient] {
    for (const auto& sum : wanted) *sum = *gradient;
    gradient->reset();
  });
  return output;
}

FeatureMaps MemoryTape::checkpoint(const Segment& segment, const FeatureMaps& inputs) {
  records_ = false;
  const auto outputs = segment(inputs);
  records_ = true;
  std::vector<std::shared_ptr<Allocation>> gradients;
  for (const auto& output : outputs) gradients.push_back(output.gradient);
  record([this, segment, inputs, gradients] {
    const auto recorded = backwards_.size();
    auto inputs_again = inputs;
    for (auto& input : inputs_again)
      if (input.gradient) input.gradient = std::make_shared<Allocation>();
    const auto outputs_again = segment(inputs_again);
    for (std::size_t i = 0; i < gradients.size(); ++i) *outputs_again[i].gradient = *gradients[i];
    run_backwards(recorded);
    for (const auto& gradient : gradients) gradient->reset();
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].gradient) *inputs[i].gradient = *inputs_again[i].gradient;
  });
  return outputs;
}

void MemoryTape::backward(const FeatureMap& output) {
  *output.gradient = allocate(*output.memory);
  run_backwards(0);
}

void MemoryTape::record(std::function<void()> backward) {
  if (records_) backwards_.push_back(std::move(backward));
}

void MemoryTape::run_backwards(std::size_t left) {
  while (backwards_.size() > left) {
    const auto backward = std::move(backwards_.back());
    backwards_.pop_back();
    backward();
  }
}

}  // namespace millrace
