#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "millrace/comm/collectives.h"
#include "millrace/core/philox.h"
#include "mpi_world.h"

namespace millrace {
namespace {

std::vector<float> numbers_of(int rank, std::size_t count) {
  std::vector<float> numbers(count);
  for (std::size_t i = 0; i < count; ++i) {
    numbers[i] = uniform(RngKey{.seed = 5, .sample = static_cast<std::uint64_t>(rank)}, Purpose::noise, i) - 0.5f;
  }
  return numbers;
}

// Rank after rank, as the interface promises.
std::vector<float> sum_over(int ranks, std::size_t count) {
  auto sum = numbers_of(0, count);
  for (int rank = 1; rank < ranks; ++rank) {
    const auto more = numbers_of(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += more[i];
  }
  return sum;
}

class CollectivesOf : public testing::TestWithParam<std::size_t> {
 protected:
  CollectivesOf() : collectives(make_host_collectives(test_world().group())) {}
  std::unique_ptr<Collectives> collectives;
};

TEST_P(CollectivesOf, AllReduceSumsInTheOrderOfRanks) {
  const auto count = GetParam() + 3;  // not a multiple of the ranks
  auto data = numbers_of(collectives->rank(), count);
  collectives->all_reduce_sum(data);
  EXPECT_EQ(data, sum_over(collectives->size(), count));
}

TEST_P(CollectivesOf, ReduceScatterInPlaceAndApart) {
  const auto part = GetParam();
  const auto count = part * collectives->size();
  const auto all = sum_over(collectives->size(), count);
  const std::vector<float> expected(all.begin() + collectives->rank() * part,
                                    all.begin() + (collectives->rank() + 1) * part);

  auto data = numbers_of(collectives->rank(), count);
  std::vector<float> apart(part);
  collectives->reduce_scatter_sum(data, apart);
  EXPECT_EQ(apart, expected);
  EXPECT_EQ(data, numbers_of(collectives->rank(), count));

  const auto own = std::span(data).subspan(collectives->rank() * part, part);
  collectives->reduce_scatter_sum(data, own);
  EXPECT_EQ(std::vector<float>(own.begin(), own.end()), expected);
}

TEST_P(CollectivesOf, AllGatherInPlaceAndApart) {
  const auto part = GetParam();
  const auto own = numbers_of(collectives->rank(), part);
  std::vector<float> expected;
  for (int rank = 0; rank < collectives->size(); ++rank) {
    const auto numbers = numbers_of(rank, part);
    expected.insert(expected.end(), numbers.begin(), numbers.end());
  }
  std::vector<float> all(expected.size());
  collectives->all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  EXPECT_EQ(all, expected);

  std::vector<float> in_place(expected.size());
  const auto mine = std::span(in_place).subspan(collectives->rank() * part, part);
  std::copy(own.begin(), own.end(), mine.begin());
  collectives->all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(in_place)));
  EXPECT_EQ(in_place, expected);
}

TEST_P(CollectivesOf, Broadcast) {
  auto data = numbers_of(collectives->rank(), GetParam());
  collectives->broadcast(std::as_writable_bytes(std::span(data)), collectives->size() - 1);
  EXPECT_EQ(data, numbers_of(collectives->size() - 1, GetParam()));
}

// Nothing, less than a chunk, exactly two chunks, chunks and a rest.
INSTANTIATE_TEST_SUITE_P(Sizes, CollectivesOf, testing::Values(0, 17, 262144, 300001));

}  // namespace
}  // namespace millrace
