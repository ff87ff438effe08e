#include "millrace/train/balance.h"

#include <gmock/gmock.h>

#include <array>
#include <bit>
#include <numeric>

#include "balance_watch.h"

namespace millrace {
namespace {

using testing::HasSubstr;

constexpr RoleCounts all_in_one{3, 3, true};

RoleCounts roles(int trainers, int producers) {
  return {trainers, producers};
}

// 48 encoders at 25 img/s each give 1,200; trainers that wait an eighth of their time could take 1,371: 55 encoders.
TEST(Balance, SaysHowManyEncodersAreMissing) {
  EXPECT_EQ(describe({1200, 0.125, 1200, {.encode = 0.98}}, roles(32, 48)),
            "trainers wait 12% for samples: 7 more encoder ranks would balance (trainers could take 1371 img/s)");
  EXPECT_THAT(describe({100, 0.06, 100, {.encode = 1}}, roles(1, 1)), HasSubstr(": 1 more encoder rank would"));
  EXPECT_THAT(describe({100, 0.9, 100, {.encode = 1}}, roles(7, 3)), HasSubstr(": 27 more encoder ranks would"));
}

// Of 512 stripes 64 of 448 encoders have two, which do as much as 256 do: more help from 512 on, where each has one.
TEST(Balance, CountsWhatEncodersWithMostStripesGive) {
  const auto of_stripes = [](int producers, int stripes) {
    return RoleCounts{.trainers = 32, .producers = producers, .stripes = stripes};
  };
  const StageShares uneven{.encode = 0.57, .send_wait = 0.43};  // most wait for those that have two
  EXPECT_EQ(describe({2560, 0.1, 4480, uneven}, of_stripes(448, 512)),
            "trainers wait 10% for samples: 64 more encoder ranks would balance (trainers could take 2844 img/s)");
  EXPECT_EQ(judge({2560, 0.1, 5000, {.encode = 0.5, .send_wait = 0.5}}, of_stripes(500, 512)).producers, 512)
      << "they wait for each other, not for the trainers";
  EXPECT_EQ(
      describe({5120, 0.1, 5120, {.encode = 0.99}}, of_stripes(512, 512)),
      "trainers wait 10% for samples: encoding holds them back, and each encoder has one of the 512 stripes: more "
      "encoders take a larger data.stripes, in a new run (trainers could take 5689 img/s)");
  const StageShares some_have_two{.encode = 0.67, .send_wait = 0.33};  // of 48 encoders, for 64 stripes
  EXPECT_EQ(
      describe({320, 0.6, 480, some_have_two}, of_stripes(48, 64)),
      "trainers wait 60% for samples: 16 more encoder ranks would help, but not balance: each then has one of "
      "the 64 stripes, and more encoders take a larger data.stripes, in a new run (trainers could take 800 img/s)")
      << "that takes 80 encoders";
  EXPECT_EQ(describe({320, 0.5, 480, some_have_two}, of_stripes(48, 64)),
            "trainers wait 50% for samples: 16 more encoder ranks would balance (trainers could take 640 img/s)");
  EXPECT_EQ(judge({2400, 0, 5000, {.encode = 0.48, .send_wait = 0.52}}, of_stripes(500, 512)).producers, 256);
  const auto many = judge({2600, 0, 5120, {.encode = 0.3, .send_wait = 0.7}}, of_stripes(512, 512));
  EXPECT_EQ(many, (Judgement{.producers = 512, .trainers = 63})) << "260 encoders would give no more than 256";
  EXPECT_EQ(judge({100, 0, 0, {.read = 0.1, .send_wait = 0.65}}, of_stripes(12, 12)).producers, 6) << "not 5: 4.2 work";
}

// Encoders that encode for three quarters of their time, and wait for samples for the rest, give that much less: 48 of
// them at 33.3 img/s while they encode are worth 48 at 25.
TEST(Balance, CountsEncodersByWhatTheyReallyGive) {
  EXPECT_EQ(judge({1200, 0.125, 1600, {.encode = 0.75, .encode_wait = 0.25}}, roles(32, 48)).producers, 55);
}

TEST(Balance, SaysHowManyEncodersAreEnough) {
  EXPECT_EQ(describe({100, 0.01, 600, {.encode = 0.2, .send_wait = 0.8}}, roles(5, 4)),
            "producers wait 80%: 1 encoder is enough for 5 trainers");
  EXPECT_EQ(describe({310, 0, 600, {.encode = 0.4, .send_wait = 0.6}}, roles(1, 4)),
            "producers wait 60%: 3 encoders are enough for 1 trainer");
}

// Fewer than one is no advice; more trainers are.
TEST(Balance, SaysHowManyTrainersOneEncoderCouldServe) {
  EXPECT_EQ(describe({100, 0, 700, {.encode = 0.14, .send_wait = 0.86}}, roles(2, 1)),
            "producers wait 86%: 1 encoder would be enough for 14 trainers");
  EXPECT_EQ(describe({100, 0, 110, {.encode = 0.4, .send_wait = 0.6}}, roles(1, 1)),
            "producers keep up with the trainers");
}

TEST(Balance, EncodersAreNoCureForWhatComesBeforeThem) {
  const StageShares decoding{.read = 0.1, .decode = 0.8, .encode = 0.3, .encode_wait = 0.7};
  EXPECT_EQ(describe({100, 0.5, 300, decoding}, roles(2, 2)),
            "trainers wait 50% for samples: decoding holds the producers back: more data.threads where processors are "
            "idle, or more producer ranks");
  EXPECT_THAT(describe({100, 0.5, 300, decoding}, all_in_one), testing::EndsWith("idle, or more ranks"));
}

// Nothing is encoded: threads and storage are what there is.
TEST(Balance, CachedEncodingsNeedNoEncoders) {
  const StageShares reading{.read = 0.9, .encode = 0.02, .encode_wait = 0.9};
  EXPECT_EQ(describe({100, 0.5, 0, reading}, roles(2, 2)),
            "trainers wait 50% for samples: reading holds the producers back: faster storage, more data.threads, or "
            "more producer ranks");
  EXPECT_EQ(judge({100, 0.5, 0, {.encode = 0.9}}, roles(2, 2)).bottleneck, Bottleneck::reading);
  EXPECT_EQ(describe({100, 0, 0, {.read = 0.1, .send_wait = 0.9}}, roles(2, 8)),
            "producers wait 90%: 1 producer is enough for 2 trainers");
  EXPECT_EQ(describe({100, 0, 0, {.read = 0.1, .send_wait = 0.9}}, roles(2, 1)), "producers keep up with the trainers");
}

TEST(Balance, WhereBothWaitItIsWhatTheyShare) {
  EXPECT_THAT(describe({100, 0.5, 300, {.send = 0.9}}, roles(2, 2)), HasSubstr("the network"));
  EXPECT_THAT(describe({100, 0.5, 300, {.encode = 0.3, .send_wait = 0.6}}, roles(2, 2)), HasSubstr("share processors"));
  EXPECT_THAT(describe({100, 0.5, 300, {.encode = 0.3, .send_wait = 0.6}}, all_in_one),
              HasSubstr("share the same processors"));
}

TEST(Balance, RanksThatDoBothAreToldOfTheCache) {
  EXPECT_THAT(describe({100, 0.3, 140, {.encode = 0.9}}, all_in_one), HasSubstr("encode.cache"));
  EXPECT_EQ(describe({100, 0.01, 600, {.encode = 0.2, .send_wait = 0.8}}, all_in_one),
            "producers keep up with the trainers");
}

// A run that took no step; rates that are not known yet.
TEST(Balance, HasWordsForNothing) {
  EXPECT_EQ(describe({}, roles(1, 1)), "producers keep up with the trainers");
  EXPECT_EQ(judge({}, roles(5, 3)), Judgement{});
  EXPECT_EQ(describe(balance_of({}), all_in_one), "producers keep up with the trainers");
  EXPECT_EQ(judge({0, 1, 100, {.encode = 1}}, roles(1, 1)).producers, 2);
}

// A member that is added to one of them counts as well.
TEST(Balance, SumsTakeInEveryNumber) {
  using Numbers = std::array<double, sizeof(Balance) / sizeof(double)>;
  Numbers numbers{};
  std::iota(numbers.begin(), numbers.end(), 1.0);
  Balance sum;
  sum.add(std::bit_cast<Balance>(numbers), 0.5);
  sum.add(std::bit_cast<Balance>(numbers), 1.5);
  const auto sums = std::bit_cast<Numbers>(sum);
  for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], 2 * numbers[i]) << i;
}

// ---- during a run ------------------------------------------------------------------------------------------------

Metrics line_at(double seconds, double wait, double send_wait) {
  return {.images_per_second = 100,
          .step_ms = 1000,
          .data_wait_ms = 1000 * wait,
          .encode_images_per_second = 100,
          .stages = {.encode = 1 - send_wait, .send_wait = send_wait},
          .elapsed_seconds = seconds};
}

TEST(BalanceWatch, TellsAfterAMinuteAndWhenItChanges) {
  BalanceWatch watch(roles(1, 2));
  std::vector<std::string> told;
  for (int second = 0; second <= 400; second += 10) {
    const bool is_slow = second > 100 && second < 300;
    // The first line's wait is for the first samples.
    if (const auto news = watch.look(line_at(second, second == 0 ? 0.9 : is_slow ? 0.2 : 0.0, is_slow ? 0.0 : 0.4)))
      told.push_back(std::to_string(second) + " " + *news);
  }
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0],
            "120 trainers wait 7% for samples: 1 more encoder rank would balance (trainers could take 107 img/s)");
  EXPECT_EQ(told[1], "360 producers keep up with the trainers");
}

TEST(BalanceWatch, IsSilentWhileThereIsNothingToCure) {
  BalanceWatch watch(roles(1, 1));
  for (int second = 0; second <= 400; second += 10) EXPECT_FALSE(watch.look(line_at(second, 0.01, 0.4))) << second;
}

}  // namespace
}  // namespace millrace
