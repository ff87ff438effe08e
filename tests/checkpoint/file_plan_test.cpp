#include "millrace/checkpoint/file_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace millrace {
namespace {

FlatLayout layout_of(int shards, std::mt19937& random) {
  std::vector<ParameterSpec> parameters;
  const int count = 1 + static_cast<int>(random() % 9);
  for (int i = 0; i < count; ++i)
    parameters.push_back({"p" + std::to_string(i), {1 + static_cast<std::int64_t>(random() % 700)}});
  return plan_flat_layout(parameters, 500, shards);
}

// For any number of trainers and files: all files together hold every element once, each trainer brings only what it
// holds, and what the trainers of a file bring is what the file holds.
TEST(FilePlan, EveryElementIsWrittenOnce) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const ShardPlan plan{Strategy::hybrid, 1 + static_cast<int>(random() % 12), 1 + static_cast<int>(random() % 5)};
    const int trainers = plan.shards * plan.replicas, max_files = 1 + static_cast<int>(random() % 14);
    const auto layout = layout_of(plan.shards, random);
    const FilePlan files(layout, plan, max_files);
    EXPECT_LE(files.files(), max_files) << seed;

    std::map<std::string, std::vector<int>> written;
    for (const auto& spec : layout.parameters) written[spec.name].resize(static_cast<std::size_t>(spec.elements()));
    std::vector<int> times(static_cast<std::size_t>(trainers));
    for (int file = 0; file < files.files(); ++file) {
      std::int64_t held = 0, brought = 0;
      for (const auto& slice : files.slices_of(file)) {
        held += slice.end - slice.begin;
        for (auto i = slice.begin; i < slice.end; ++i) ++written.at(slice.name).at(static_cast<std::size_t>(i));
      }
      for (const int trainer : files.trainers_of(file)) {
        EXPECT_EQ(files.file_of(trainer), file) << seed;
        ++times.at(static_cast<std::size_t>(trainer));
        for (const auto& slice : files.part_of(trainer)) {
          brought += slice.end - slice.begin;
          bool is_own = false;
          for (const auto& own : slices_of_shard(layout, plan.shard_of(trainer)))
            is_own |= own.name == slice.name && own.bucket == slice.bucket && own.begin <= slice.begin &&
                      slice.end <= own.end && slice.shard_offset - own.shard_offset == slice.begin - own.begin;
          EXPECT_TRUE(is_own) << seed;
        }
      }
      EXPECT_EQ(held, brought) << seed;
    }
    for (const auto& [name, counts] : written)
      EXPECT_TRUE(std::ranges::all_of(counts, [](int count) { return count == 1; })) << seed << " " << name;
    for (int trainer = 0; trainer < trainers; ++trainer)
      EXPECT_EQ(times[static_cast<std::size_t>(trainer)], files.file_of(trainer) ? 1 : 0) << seed;
  }
}

TEST(FilePlan, AllTrainersWriteAnEqualPartWhereThereMayBeThatManyFiles) {
  std::mt19937 random(1);
  const auto layout = layout_of(3, random);
  const FilePlan files(layout, {Strategy::hybrid, 3, 4}, 64);
  EXPECT_EQ(files.files(), 12);
  for (int shard = 0; shard < 3; ++shard) {
    std::int64_t most = 0, least = INT64_MAX;
    for (int replica = 0; replica < 4; ++replica) {
      std::int64_t elements = 0;
      for (const auto& slice : files.part_of(3 * replica + shard)) elements += slice.end - slice.begin;
      most = std::max(most, elements), least = std::min(least, elements);
    }
    EXPECT_LE(most - least, 1);
  }
}

TEST(FilePlan, AThousandTrainersWrite64Files) {
  std::mt19937 random(2);
  for (const auto& [shards, replicas] : {std::pair{1024, 1}, {8, 128}, {1, 1024}, {100, 10}}) {
    const FilePlan files(layout_of(shards, random), {Strategy::hybrid, shards, replicas}, 64);
    EXPECT_LE(files.files(), 64);
    EXPECT_GE(files.files(), 50);
  }
}

// What docs/operations.md says of those who write.
TEST(FilePlan, MoreThan64TrainersWriteAtLeast33Files) {
  std::mt19937 random(3);
  for (int shards = 1; shards <= 200; ++shards) {
    const ShardPlan plan{Strategy::hybrid, shards, 64 / shards + 1};
    const FilePlan files(layout_of(shards, random), plan, 64);
    EXPECT_LE(files.files(), 64) << shards;
    EXPECT_GE(files.files(), 33) << shards;
  }
  EXPECT_EQ(FilePlan(layout_of(66, random), {Strategy::shard_grad_op, 66, 1}, 64).files(), 33);
}

}  // namespace
}  // namespace millrace
