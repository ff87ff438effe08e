#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>
#include <thread>

#include "launch/threads.h"

namespace millrace {
namespace {

std::vector<int> cpus(int first, int count) {
  std::vector<int> mask(count);
  std::iota(mask.begin(), mask.end(), first);
  return mask;
}

std::vector<int> threads_of_all(const std::vector<std::vector<int>>& masks,
                                const std::vector<std::vector<CpuQuota>>& quotas) {
  std::vector<int> threads;
  for (std::size_t rank = 0; rank < masks.size(); ++rank) threads.push_back(plan_threads(masks, quotas, rank));
  return threads;
}

std::vector<int> threads_of_all(const std::vector<std::vector<int>>& masks) {
  return threads_of_all(masks, std::vector<std::vector<CpuQuota>>(masks.size()));
}

using Threads = std::vector<int>;

TEST(Threads, AloneARankUsesAllItMay) {
  EXPECT_EQ(threads_of_all({cpus(0, 1)}), Threads{1});
  EXPECT_EQ(threads_of_all({cpus(3, 96)}), Threads{96});
}

// mpirun --bind-to none: all ranks may use the whole node.
TEST(Threads, EqualMasksAreDivided) {
  EXPECT_EQ(threads_of_all({cpus(0, 96), cpus(0, 96), cpus(0, 96), cpus(0, 96)}), Threads({24, 24, 24, 24}));
  EXPECT_EQ(threads_of_all({cpus(0, 8), cpus(0, 8), cpus(0, 8)}), Threads({2, 2, 2}));
  for (int ranks = 1; ranks <= 64; ++ranks)
    for (int each = 1; each <= 16; ++each)
      EXPECT_EQ(plan_threads(std::vector(ranks, cpus(0, ranks * each)), std::vector<std::vector<CpuQuota>>(ranks), 0),
                each)
          << ranks;
}

// srun --cpus-per-task=12: 8 ranks of a node with a mask of their own.
TEST(Threads, MasksOfTheirOwnAreUsedWhole) {
  std::vector<std::vector<int>> masks;
  for (int rank = 0; rank < 8; ++rank) masks.push_back(cpus(12 * rank, 12));
  EXPECT_EQ(threads_of_all(masks), Threads(8, 12));
}

TEST(Threads, SocketsAreDividedAmongTheirRanks) {
  EXPECT_EQ(threads_of_all({cpus(0, 16), cpus(0, 16), cpus(16, 16), cpus(16, 16), cpus(16, 16)}),
            Threads({8, 8, 5, 5, 5}));
}

TEST(Threads, WhatOverlapsIsSharedAndTheRestIsOwn) {
  EXPECT_EQ(threads_of_all({cpus(0, 4), cpus(2, 4)}), Threads({3, 3}));
  EXPECT_EQ(threads_of_all({cpus(0, 12), cpus(0, 1)}), Threads({11, 1}));
}

TEST(Threads, MoreRanksThanCpusHaveOneEach) {
  EXPECT_EQ(threads_of_all(std::vector(5, cpus(0, 2))), Threads(5, 1));
  EXPECT_EQ(threads_of_all({{}, {}}), Threads({1, 1}));
}

// docker run --cpus=6 on a machine of 64.
TEST(Threads, AQuotaIsDividedAmongTheRanksOfItsGroup) {
  const std::vector<CpuQuota> container{{7, 6}}, other{{8, 6}};
  EXPECT_EQ(threads_of_all({cpus(0, 64)}, {container}), Threads{6});
  EXPECT_EQ(threads_of_all({cpus(0, 4)}, {container}), Threads{4}) << "its CPUs are fewer";
  EXPECT_EQ(threads_of_all(std::vector(3, cpus(0, 64)), {container, container, container}), Threads(3, 2));
  EXPECT_EQ(threads_of_all(std::vector(4, cpus(0, 64)), {container, container, container, {}}), Threads({2, 2, 2, 16}));
  EXPECT_EQ(threads_of_all(std::vector(2, cpus(0, 64)), {container, other}), Threads({6, 6})) << "of a container each";
  EXPECT_EQ(threads_of_all(std::vector(8, cpus(0, 64)), std::vector(8, container)), Threads(8, 1));
}

// Tasks with a quota of their own, in a job that has another for all of them.
TEST(Threads, OfSeveralQuotasTheTightestCounts) {
  EXPECT_EQ(threads_of_all(std::vector(2, cpus(0, 64)), {{{1, 3}, {9, 4}}, {{2, 1}, {9, 4}}}), Threads({2, 1}));
}

TEST(Threads, LargeMachinesHaveLargeNumbers) {
  EXPECT_EQ(threads_of_all({cpus(0, 2048), cpus(2048, 1024)}), Threads({2048, 1024}));
}

TEST(Threads, ThisProcessMayRunSomewhere) {
  const auto own = allowed_cpus();
  EXPECT_EQ(own.size(), std::thread::hardware_concurrency());  // glibc counts the mask as well
  EXPECT_TRUE(std::is_sorted(own.begin(), own.end()));
}

}  // namespace
}  // namespace millrace
