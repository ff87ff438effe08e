#include "millrace/parallel/flat_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "millrace/core/error.h"

namespace millrace {
namespace {

// Parameters begin, and shards are multiples of, this many elements: 64 bytes in bfloat16, 128 in float32, so that
// vector loads and GPU transfers stay aligned.
constexpr std::int64_t alignment = 32;

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::int64_t ParameterSpec::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

FlatLayout plan_flat_layout(std::vector<ParameterSpec> parameters, std::int64_t bucket_elements, int shards) {
  ensure(!parameters.empty() && shards > 0, "flat layout: nothing to lay out");
  FlatLayout layout{.parameters = std::move(parameters), .buckets = {}, .shards = shards};
  const auto& specs = layout.parameters;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto elements = round_up(specs[i].elements(), alignment);
    if (layout.buckets.empty() || layout.buckets.back().elements + elements > bucket_elements)
      layout.buckets.emplace_back();
    FlatBucket& bucket = layout.buckets.back();
    bucket.placements.push_back({static_cast<int>(i), bucket.elements});
    bucket.elements += elements;
  }
  for (auto& bucket : layout.buckets) bucket.elements = round_up(bucket.elements, alignment * shards);
  return layout;
}

std::vector<Slice> slices_of_shard(const FlatLayout& layout, int shard) {
  ensure(shard >= 0 && shard < layout.shards, "flat layout: no such shard");
  std::vector<Slice> slices;
  for (int b = 0; b < static_cast<int>(layout.buckets.size()); ++b) {
    const std::int64_t shard_begin = shard * layout.shard_elements(b),
                       shard_end = shard_begin + layout.shard_elements(b);
    for (const auto& placement : layout.buckets[b].placements) {
      const auto& spec = layout.parameters[placement.parameter];
      const auto begin = std::max(shard_begin, placement.offset);
      const auto end = std::min(shard_end, placement.offset + spec.elements());
      if (begin >= end) continue;
      slices.push_back({.name = spec.name,
                        .shape = spec.shape,
                        .channels_last = spec.channels_last,
                        .begin = begin - placement.offset,
                        .end = end - placement.offset,
                        .bucket = b,
                        .shard_offset = begin - shard_begin});
    }
  }
  return slices;
}

std::vector<Slice> equal_part(const std::vector<Slice>& slices, int index, int parts) {
  ensure(index >= 0 && index < parts, "flat layout: no such part");
  std::int64_t elements = 0;
  for (const auto& slice : slices) elements += slice.end - slice.begin;
  const auto begin = elements * index / parts, end = elements * (index + 1) / parts;
  std::vector<Slice> part;
  std::int64_t at = 0;  // of the slice's first element
  for (const auto& slice : slices) {
    const auto size = slice.end - slice.begin;
    const auto from = std::clamp(begin - at, std::int64_t{0}, size), to = std::clamp(end - at, std::int64_t{0}, size);
    at += size;
    if (from >= to) continue;
    part.push_back(slice);
    part.back().end = slice.begin + to;
    part.back().begin += from;
    part.back().shard_offset += from;
  }
  return part;
}

}  // namespace millrace
