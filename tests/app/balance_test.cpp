#include "run/balance.h"

#include <gmock/gmock.h>

namespace millrace {
namespace {

using testing::HasSubstr;

Roles roles_of(int trainers, int producers) {
  Roles roles;
  for (int i = 0; i < trainers; ++i) roles.trainers.push_back(i);
  for (int i = 0; i < producers; ++i) roles.producers.push_back(trainers + i);
  return roles;
}

Roles all_in_one(int ranks) {
  Roles roles = roles_of(ranks, 0);
  roles.producers = roles.trainers;
  roles.all_in_one = true;
  return roles;
}

// 48 encoders at 25 img/s each give 1,200; trainers that wait an eighth of their time could take 1,371: 55 encoders.
TEST(Balance, SaysHowManyEncodersAreMissing) {
  const Balance balance{1200, 0.125, 1200, {.encode = 0.98, .encode_wait = 0.01}};
  EXPECT_EQ(describe(balance, roles_of(32, 48)),
            "trainers wait 12% for samples: 7 more encoder ranks would balance (trainers could take 1371 img/s)");
  EXPECT_THAT(describe({100, 0.06, 100, {.encode = 1}}, roles_of(1, 1)), HasSubstr(": 1 more encoder rank would"));
}

TEST(Balance, SaysHowManyEncodersAreEnough) {
  EXPECT_EQ(describe({100, 0.01, 600, {.encode = 0.2, .send_wait = 0.8}}, roles_of(5, 4)),
            "producers wait 80%: 1 encoder is enough for 5 trainers");
  EXPECT_EQ(describe({310, 0, 600, {.encode = 0.4, .send_wait = 0.6}}, roles_of(1, 4)),
            "producers wait 60%: 3 encoders are enough for 1 trainer");
  EXPECT_EQ(describe({100, 0, 600, {.encode = 0.2, .send_wait = 0.8}}, roles_of(1, 1)),
            "producers keep up with the trainers");
}

// More encoders are no cure for what comes before or behind them.
TEST(Balance, NamesTheStageThatHoldsThemBack) {
  const auto decoding = StageShares{.read = 0.1, .decode = 0.8, .encode = 0.3, .encode_wait = 0.7};
  EXPECT_EQ(describe({100, 0.5, 300, decoding}, roles_of(2, 2)),
            "trainers wait 50% for samples: decoding holds the producers back: more data.threads, or producer ranks");
  const auto cached = StageShares{.read = 0.9, .encode_wait = 0.9};
  EXPECT_THAT(describe({100, 0.5, 0, cached}, roles_of(2, 2)), HasSubstr("reading holds the producers back"));
  EXPECT_THAT(describe({100, 0.5, 300, {.send = 0.9}}, roles_of(2, 2)), HasSubstr("the network"));
  EXPECT_THAT(describe({100, 0.5, 300, {.encode = 0.3, .send_wait = 0.6}}, roles_of(2, 2)),
              HasSubstr("share processors"));
}

TEST(Balance, RanksThatDoBothAreToldOfTheCache) {
  EXPECT_THAT(describe({100, 0.3, 140, {.encode = 0.9}}, all_in_one(3)), HasSubstr("encode.cache"));
  EXPECT_EQ(describe({100, 0.01, 600, {.encode = 0.2, .send_wait = 0.8}}, all_in_one(3)),
            "producers keep up with the trainers");
}

// A run that took no step.
TEST(Balance, HasWordsForNothing) {
  EXPECT_EQ(describe({}, roles_of(1, 1)), "producers keep up with the trainers");
}

}  // namespace
}  // namespace millrace
