#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "millrace/parallel/flat_layout.h"

namespace millrace {
namespace {

// 1152, 4, 1, 9, 640 and 8 elements.
std::vector<ParameterSpec> parameters() {
  return {{"conv.weight", {32, 4, 3, 3}, true},
          {"a.weight", {2, 2}},
          {"a.scalar", {}},
          {"a.bias", {9}},
          {"b.weight", {20, 32}},
          {"out.bias", {8}}};
}

TEST(FlatLayout, FillsBucketsInOrder) {
  const auto sizes = [](std::int64_t bucket_elements) {
    std::vector<std::size_t> sizes;
    int expected = 0;
    for (const auto& bucket : plan_flat_layout(parameters(), bucket_elements, 2).buckets) {
      sizes.push_back(bucket.placements.size());
      for (const auto& placement : bucket.placements) EXPECT_EQ(placement.parameter, expected++);
    }
    EXPECT_EQ(expected, 6);
    return sizes;
  };
  using Sizes = std::vector<std::size_t>;
  EXPECT_EQ(sizes(800), (Sizes{1, 5}));  // the first is larger than a bucket: alone
  EXPECT_EQ(sizes(640), (Sizes{1, 3, 1, 1}));
  EXPECT_EQ(sizes(1), (Sizes{1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(sizes(1 << 20), (Sizes{6}));
}

TEST(FlatLayout, ParametersDoNotOverlapAndAreAligned) {
  const auto layout = plan_flat_layout(parameters(), 800, 3);
  for (const auto& bucket : layout.buckets) {
    std::int64_t end = 0;
    for (const auto& placement : bucket.placements) {
      EXPECT_GE(placement.offset, end);
      EXPECT_EQ(placement.offset % 32, 0);
      end = placement.offset + layout.parameters[placement.parameter].elements();
    }
    EXPECT_LE(end, bucket.elements);
    EXPECT_EQ(bucket.elements % (3 * 32), 0);
  }
}

class FlatLayoutShards : public testing::TestWithParam<int> {};

TEST_P(FlatLayoutShards, EveryElementBelongsToOneShard) {
  const int shards = GetParam();
  const auto layout = plan_flat_layout(parameters(), 800, shards);
  std::map<std::string, std::vector<int>> owners;
  for (const auto& spec : layout.parameters) owners[spec.name].resize(spec.elements(), 0);
  for (int shard = 0; shard < shards; ++shard) {
    for (const auto& slice : slices_of_shard(layout, shard)) {
      EXPECT_LT(slice.begin, slice.end);
      EXPECT_LE(slice.shard_offset + slice.end - slice.begin, layout.shard_elements(slice.bucket));
      EXPECT_EQ(slice.channels_last, slice.name == "conv.weight");
      for (auto i = slice.begin; i < slice.end; ++i) ++owners.at(slice.name).at(i);
    }
  }
  for (const auto& [name, counts] : owners) EXPECT_EQ(counts, std::vector<int>(counts.size(), 1)) << name;
}

TEST_P(FlatLayoutShards, PartsAreEqualAndHoldEveryElementOnce) {
  const int shards = GetParam();
  const auto layout = plan_flat_layout(parameters(), 800, shards);
  for (const int parts : {1, 2, 3, 5, 640}) {
    std::map<std::string, std::vector<int>> owners;
    for (const auto& spec : layout.parameters) owners[spec.name].resize(spec.elements(), 0);
    for (int shard = 0; shard < shards; ++shard) {
      const auto slices = slices_of_shard(layout, shard);
      std::set<std::int64_t> sizes;
      for (int index = 0; index < parts; ++index) {
        std::int64_t size = 0;
        for (const auto& slice : equal_part(slices, index, parts)) {
          size += slice.end - slice.begin;
          const auto whole = std::ranges::find_if(
              slices, [&](const Slice& other) { return other.name == slice.name && other.bucket == slice.bucket; });
          ASSERT_NE(whole, slices.end());
          EXPECT_EQ(slice.shard_offset - whole->shard_offset, slice.begin - whole->begin);
          for (auto i = slice.begin; i < slice.end; ++i) ++owners.at(slice.name).at(i);
        }
        sizes.insert(size);
      }
      EXPECT_LE(*sizes.rbegin() - *sizes.begin(), 1);
    }
    for (const auto& [name, counts] : owners) EXPECT_EQ(counts, std::vector<int>(counts.size(), 1)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, FlatLayoutShards, testing::Values(1, 2, 3, 4, 7, 64));

}  // namespace
}  // namespace millrace
