#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
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
  collectives->all_reduce_sum(buffer_of(data));
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
  collectives->reduce_scatter_sum(buffer_of(data), buffer_of(apart));
  EXPECT_EQ(apart, expected);
  EXPECT_EQ(data, numbers_of(collectives->rank(), count));

  const auto own = std::span(data).subspan(collectives->rank() * part, part);
  collectives->reduce_scatter_sum(buffer_of(data), buffer_of(own));
  EXPECT_EQ(std::vector<float>(own.begin(), own.end()), expected);
}

// Eight bits of mantissa: of these numbers each sum needs more, and is rounded once.
TEST_P(CollectivesOf, Bfloat16IsAddedInFloat32AndRoundedOnce) {
  const auto count = GetParam() * collectives->size();
  const auto value = [](int rank, std::size_t i) {  // exact in bfloat16
    return static_cast<float>(1 + (i * 7 + static_cast<std::size_t>(rank) * 31) % 127) *
           (rank % 2 == 0 ? 1.0f : 0.0625f);
  };
  const auto upper_half = [](float number) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(number) >> 16);
  };
  std::vector<std::uint16_t> data(count), own(GetParam());
  for (std::size_t i = 0; i < count; ++i) data[i] = upper_half(value(collectives->rank(), i));
  const auto expect_sum = [&](std::uint16_t got, std::size_t i) {
    double sum = 0;
    for (int rank = 0; rank < collectives->size(); ++rank) sum += value(rank, i);
    const double rounded = std::bit_cast<float>(std::uint32_t{got} << 16);
    const double unit = std::exp2(std::floor(std::log2(sum)) - 7);
    ASSERT_LE(std::abs(rounded - sum), unit / 2) << "element " << i;
  };
  collectives->reduce_scatter_sum({data.data(), count, WireType::bf16}, {own.data(), own.size(), WireType::bf16});
  for (std::size_t i = 0; i < own.size(); ++i) expect_sum(own[i], collectives->rank() * own.size() + i);
  collectives->all_reduce_sum({data.data(), count, WireType::bf16});
  for (std::size_t i = 0; i < count; ++i) expect_sum(data[i], i);
  EXPECT_TRUE(std::equal(own.begin(), own.end(), data.begin() + collectives->rank() * own.size()));
}

// Halves go to the even neighbour; what is not finite stays so.
TEST_P(CollectivesOf, Bfloat16SumsAreRoundedAsLibTorchRounds) {
  if (collectives->size() == 1) GTEST_SKIP() << "nothing is added on one rank";
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float unit = 1.0f / 128, largest = 3.3895314e38f;  // of numbers from 1 on; the largest of bfloat16
  const struct {
    float first, second, sum;
  } cases[] = {{1, unit / 2, 1},      {1 + unit, unit / 2, 1 + 2 * unit},
               {-1, -unit / 2, -1},   {inf, 1, inf},
               {-inf, -inf, -inf},    {inf, -inf, nan},
               {nan, 1, nan},         {largest, largest / 256, inf},
               {largest, -largest, 0}};
  std::vector<std::uint16_t> data;
  for (const auto& one : cases) {
    const float mine = collectives->rank() == 0 ? one.first : collectives->rank() == 1 ? one.second : 0;
    data.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(mine) >> 16));
  }
  collectives->all_reduce_sum({data.data(), data.size(), WireType::bf16});
  for (std::size_t i = 0; i < std::size(cases); ++i) {
    const auto sum = std::bit_cast<float>(std::uint32_t{data[i]} << 16);
    if (std::isnan(cases[i].sum)) {
      EXPECT_TRUE(std::isnan(sum)) << i;
    } else {
      EXPECT_EQ(sum, cases[i].sum) << i;
    }
  }
}

TEST_P(CollectivesOf, AllGatherInPlaceAndApart) {
  const auto part = GetParam();
  auto own = numbers_of(collectives->rank(), part);
  std::vector<float> expected;
  for (int rank = 0; rank < collectives->size(); ++rank) {
    const auto numbers = numbers_of(rank, part);
    expected.insert(expected.end(), numbers.begin(), numbers.end());
  }
  std::vector<float> all(expected.size());
  collectives->all_gather(buffer_of(own), buffer_of(all));
  EXPECT_EQ(all, expected);

  std::vector<float> in_place(expected.size());
  const auto mine = std::span(in_place).subspan(collectives->rank() * part, part);
  std::copy(own.begin(), own.end(), mine.begin());
  collectives->all_gather(buffer_of(mine), buffer_of(in_place));
  EXPECT_EQ(in_place, expected);
}

TEST_P(CollectivesOf, Broadcast) {
  auto data = numbers_of(collectives->rank(), GetParam());
  collectives->broadcast(buffer_of(data), collectives->size() - 1);
  EXPECT_EQ(data, numbers_of(collectives->size() - 1, GetParam()));
}

// Nothing, less than a chunk, exactly two chunks, chunks and a rest.
INSTANTIATE_TEST_SUITE_P(Sizes, CollectivesOf, testing::Values(0, 17, 262144, 300001));

}  // namespace
}  // namespace millrace
