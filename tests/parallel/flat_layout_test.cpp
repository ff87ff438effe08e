#include <gtest/gtest.h>

#include <map>

#include "millrace/parallel/flat_layout.h"

namespace millrace {
namespace {

// Blocks of 1152, 4 + 9, 640 and 8 elements.
std::vector<ParameterSpec> parameters() {
  return {{"conv.weight", {32, 4, 3, 3}, 0, true},
          {"a.weight", {2, 2}, 1},
          {"a.scalar", {}, 1},
          {"a.bias", {9}, 1},
          {"b.weight", {20, 32}, 2},
          {"out.bias", {8}, 3}};
}

TEST(FlatLayout, KeepsBlocksTogetherAndInOrder) {
  const auto layout = plan_flat_layout(parameters(), 800, 2);
  ASSERT_EQ(layout.buckets.size(), 2u);
  EXPECT_EQ(layout.buckets[0].placements.size(), 1u);  // larger than a bucket: alone
  EXPECT_EQ(layout.buckets[1].placements.size(), 5u);
  int expected = 0;
  for (const auto& bucket : layout.buckets) {
    for (const auto& placement : bucket.placements) EXPECT_EQ(placement.parameter, expected++);
  }
  const auto narrow = plan_flat_layout(parameters(), 1, 2);
  EXPECT_EQ(narrow.buckets.size(), 4u);  // one per block, never less
  const auto wide = plan_flat_layout(parameters(), 1 << 20, 2);
  EXPECT_EQ(wide.buckets.size(), 1u);
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

INSTANTIATE_TEST_SUITE_P(Counts, FlatLayoutShards, testing::Values(1, 2, 3, 4, 7, 64));

}  // namespace
}  // namespace millrace
