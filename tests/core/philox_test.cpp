#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "millrace/core/philox.h"

namespace millrace {
namespace {

constexpr std::uint32_t all = 0xFFFFFFFF;

// Known answers of Random123 (kat_vectors, philox4x32 10).
TEST(Philox, MatchesTheKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({all, all, all, all}, {all, all}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, KeyAndCounterAreLaidOutAsDocumented) {
  const RngKey key{.seed = 0x299f31d0a4093822, .sample = 0x0370734413198a2e, .epoch = 0xa308d3};
  EXPECT_EQ(random_block(key, Purpose{0x85}, 0x243f6a88),
            philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}));
  const RngKey wide{.seed = key.seed, .sample = key.sample, .epoch = 0xFFa308d3};  // only 24 bits of the epoch count
  EXPECT_EQ(random_block(wide, Purpose{0x85}, 1), random_block(key, Purpose{0x85}, 1));
}

// docs/numerics.md, from 1 on: another number would give runs another order and other noise.
TEST(Philox, PurposesHaveTheDocumentedNumbers) {
  constexpr Purpose documented[] = {Purpose::crop,          Purpose::flip,
                                    Purpose::posterior,     Purpose::noise,
                                    Purpose::timestep,      Purpose::caption_drop,
                                    Purpose::shuffle,       Purpose::assign_splits,
                                    Purpose::noise_offset,  Purpose::input_perturbation,
                                    Purpose::weights,       Purpose::initial_latents,
                                    Purpose::timestep_part, Purpose::caption_choice};
  std::uint32_t number = 0;
  for (const Purpose purpose : documented) EXPECT_EQ(static_cast<std::uint32_t>(purpose), ++number);
  EXPECT_EQ(number, 14u);
}

TEST(Philox, UniformTakesTheUpper24BitsOfEachWord) {
  const RngKey key{.seed = 420, .sample = 7, .epoch = 1};
  const PhiloxCounter block = random_block(key, Purpose::crop, 2);
  for (std::uint32_t j = 0; j < 4; ++j) {
    EXPECT_EQ(uniform(key, Purpose::crop, 8 + j), static_cast<float>(std::ldexp(block[j] >> 8, -24)));
  }
}

TEST(Philox, UniformIntIsTheHighHalfOfTheProduct) {
  const RngKey key{.seed = 420, .sample = 7};
  const PhiloxCounter block = random_block(key, Purpose::assign_splits, 0);
  const std::uint64_t second = block[2] | std::uint64_t{block[3]} << 32;
  EXPECT_EQ(uniform_int(key, Purpose::assign_splits, 1ull << 32, 1), second >> 32);
  for (std::uint32_t i = 0; i < 100; ++i) EXPECT_LT(uniform_int(key, Purpose::assign_splits, 7, i), 7u);
}

// The textbook formula in double precision.
double reference_normal(const PhiloxCounter& block, std::size_t j) {
  const double u = ((block[j / 2 * 2] >> 8) + 1) * 0x1p-24;
  const double turn = static_cast<double>(block[j / 2 * 2 + 1]) * 0x1p-32;
  const double radius = std::sqrt(-2 * std::log(u)), angle = 2 * M_PI * turn;
  return j % 2 == 0 ? radius * std::cos(angle) : radius * std::sin(angle);
}

TEST(Philox, NormalsAreBoxMullersToSinglePrecision) {
  const RngKey key{.seed = 420, .sample = 0xABCDEF0123456789, .epoch = 3};
  std::vector<float> normals(1 << 18);
  fill_normal(key, Purpose::noise, normals);
  double worst = 0;
  for (std::size_t i = 0; i < normals.size(); ++i) {
    const double expected =
        reference_normal(random_block(key, Purpose::noise, static_cast<std::uint32_t>(i / 4)), i % 4);
    worst = std::max(worst, std::abs(normals[i] - expected));
  }
  EXPECT_LT(worst, 1e-6);
}

TEST(Philox, NormalsHaveTheMomentsOfTheNormalDistribution) {
  std::vector<float> normals(1 << 20);
  fill_normal({.seed = 1}, Purpose::noise, normals);
  double moments[5] = {};
  for (const float x : normals) {
    ASSERT_TRUE(std::isfinite(x));
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow(x, k) / static_cast<double>(normals.size());
  }
  EXPECT_NEAR(moments[1], 0, 0.005);
  EXPECT_NEAR(moments[2], 1, 0.01);
  EXPECT_NEAR(moments[3], 0, 0.02);
  EXPECT_NEAR(moments[4], 3, 0.05);
}

TEST(Philox, NormalsDoNotDependOnHowTheyAreAskedFor) {
  const RngKey key{.seed = 9, .sample = 5};
  std::vector<float> whole(1000);
  fill_normal(key, Purpose::posterior, whole);
  for (const std::size_t size : {0, 1, 3, 63, 64, 65, 200}) {
    std::vector<float> part(size);
    fill_normal(key, Purpose::posterior, part, 132);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 132)) << size;
  }
}

TEST(Philox, ShuffleIsAPermutationThatEveryKeyChanges) {
  std::vector<std::uint32_t> ordered(257), first, other_visit;
  std::iota(ordered.begin(), ordered.end(), 0u);
  first = other_visit = ordered;
  keyed_shuffle({.seed = 1, .sample = 2, .epoch = 0}, Purpose::shuffle, first);
  keyed_shuffle({.seed = 1, .sample = 2, .epoch = 1}, Purpose::shuffle, other_visit);
  EXPECT_NE(first, ordered);
  EXPECT_NE(first, other_visit);
  EXPECT_TRUE(std::is_permutation(first.begin(), first.end(), ordered.begin()));
}

// Where three cards land in all six orders: a biased shuffle shows at once.
TEST(Philox, ShuffleReachesAllOrdersEquallyOften) {
  std::array<int, 27> seen{};
  for (std::uint64_t sample = 0; sample < 60'000; ++sample) {
    std::uint32_t cards[3] = {0, 1, 2};
    keyed_shuffle({.seed = 4, .sample = sample}, Purpose::shuffle, cards);
    ++seen[cards[0] * 9 + cards[1] * 3 + cards[2]];
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 0), 21);
  for (const int count : seen) {
    if (count > 0) {
      EXPECT_NEAR(count, 10'000, 450);
    }
  }
}

}  // namespace
}  // namespace millrace
