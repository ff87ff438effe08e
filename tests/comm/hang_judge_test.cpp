// Who hangs, decided from the ranks' signs, with a clock of the test's own.
#include "hang_judge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "millrace/core/phase.h"
#include "millrace/core/stopwatch.h"

namespace millrace {
namespace {

constexpr double limit = 1800;

// Ranks that report once a second; rank 0 judges, unless another one is asked to.
class Ranks {
 public:
  explicit Ranks(std::vector<std::string> hosts, int self = 0, double hang_timeout = limit)
      : self_(self), ranks_(hosts.size()), judge_(self, std::move(hosts), hang_timeout) {}

  Sign& of(int rank) { return ranks_.at(static_cast<std::size_t>(rank)).sign; }
  // The others come to wait for it.
  void stop_signs_of(int rank) {
    for (auto& other : ranks_) other.sign.awaited = "all_reduce";
    of(rank).awaited.clear();
    silence(rank);
  }
  void silence(int rank) { ranks_.at(static_cast<std::size_t>(rank)).speaks = false; }
  void bring_back(int rank) { ranks_.at(static_cast<std::size_t>(rank)).speaks = true; }
  // The run goes on, a step a second; who is heard of says so.
  std::optional<Standstill> go_on(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      for (auto& rank : ranks_) ++rank.sign.step, rank.sign.still_seconds = 0;
      if (const auto found = pass(1)) return found;
    }
    return std::nullopt;
  }

  // All are in step `first`, and so on, for so long each.
  void take_steps(int first, int number, double seconds) {
    for (int step = first; step < first + number; ++step) {
      for (auto& rank : ranks_) rank.sign.phase = phase::training, rank.sign.step = step, rank.sign.still_seconds = 0;
      pass(seconds);
      slow_ = std::max(slow_, seconds);
      if (step - first < 20) continue;
      for (auto& rank : ranks_) rank.sign.slow_step_seconds = slow_;
    }
  }
  void take_usual_steps() { take_steps(1, 30, 1); }

  // Time passes until somebody is found, `seconds` at most. Who is still says so.
  std::optional<Standstill> pass(double seconds) {
    for (const double end = now_ + seconds; now_ < end;) {
      now_ += 0.25;
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        ranks_[i].sign.still_seconds += 0.25;
        if (ranks_[i].speaks && (self_ == 0 || i == 0 || static_cast<int>(i) == self_))
          judge_.hear(static_cast<int>(i), ranks_[i].sign, now_);
      }
      if (const auto found = judge_.find(now_)) return found;
    }
    return std::nullopt;
  }
  // Nobody runs, nobody hears.
  void sleep(double seconds) { now_ += seconds; }
  void wake_up() { judge_.restart(now_); }

 private:
  struct Rank {
    Sign sign;
    bool speaks = true;
  };
  int self_;
  std::vector<Rank> ranks_;
  HangJudge judge_;
  double now_ = 1000, slow_ = 0;
};

void expect_found(const std::optional<Standstill>& found, int rank, bool is_silent, double seconds) {
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, rank);
  EXPECT_EQ(found->is_silent, is_silent);
  EXPECT_NEAR(found->seconds, seconds, 1);
}

TEST(HangJudge, WaitsForTheWholeLimitWhileFewStepsHaveBeenTaken) {
  Ranks run({"a", "a"});
  run.take_steps(1, 19, 1);
  run.stop_signs_of(1);
  expect_found(run.pass(4000), 1, true, limit);
}

TEST(HangJudge, NamesASilentRankAfterAMinuteOnceStepsAreKnown) {
  Ranks run({"a", "a", "a"});
  run.take_usual_steps();
  run.stop_signs_of(2);
  expect_found(run.pass(4000), 2, true, 60);
}

TEST(HangJudge, NamesARankThatTrainsWithoutMoving) {
  Ranks run({"a", "b"});
  run.take_usual_steps();
  run.of(0).awaited = "all_reduce";
  expect_found(run.pass(4000), 1, false, 60);
}

TEST(HangJudge, OfSeveralThatStandStillItNamesTheOneThatHasForLongest) {
  Ranks run({"a", "b", "b"});
  run.take_usual_steps();
  run.of(2).still_seconds += 5;
  expect_found(run.pass(4000), 2, false, 66);
}

// Their GPUs may all wait for one that no collective of the hosts shows.
TEST(HangJudge, RanksOfSeveralHostsThatStandStillFromTheSameMomentAreOneOfMany) {
  Ranks run({"a", "b", "c"});
  run.take_usual_steps();
  run.of(2).still_seconds += 1;
  const auto found = run.pass(4000);
  expect_found(found, 2, false, 61);
  EXPECT_TRUE(found->is_one_of_many);
}

TEST(HangJudge, OneThatTheOthersWaitForIsNotOneOfMany) {
  for (const auto& hosts : {std::vector<std::string>{"a", "b", "c"}, {"b", "a", "a"}}) {
    Ranks run(hosts);
    run.take_usual_steps();
    run.of(0).awaited = "all_reduce";
    if (hosts[1] != hosts[2]) run.of(1).awaited = "all_reduce";
    const auto found = run.pass(4000);
    ASSERT_TRUE(found);
    EXPECT_FALSE(found->is_one_of_many) << "ranks of one host may have one cause";
  }
}

// It may wait for the silent one where no collective shows it.
TEST(HangJudge, ARankThatIsSilentIsNamedBeforeOneThatStandsStill) {
  Ranks run({"a", "b", "b"});
  run.take_usual_steps();
  run.of(0).awaited = "all_reduce";
  run.pass(1);
  run.silence(2);
  run.of(1).still_seconds = 0;  // both are over the limit at the same look
  expect_found(run.pass(4000), 2, true, 60);
}

TEST(HangJudge, JudgesOneRankForItself) {
  HangJudge judge(0, {"a", "b", "b"}, limit);
  judge.hear(0, {phase::accounting, "all_reduce", false, 30, 0, 0}, 1000);
  for (const int rank : {1, 2}) judge.hear(rank, {phase::accounting, "", false, 30, rank * 2.0 * limit, 0}, 1000);
  EXPECT_EQ(judge.find(4000)->rank, 2);
  EXPECT_EQ(judge.judge(1, 4000)->rank, 1) << "the first suspect stays the one, whoever joins it";
  EXPECT_FALSE(judge.judge(0, 4000));
}

TEST(HangJudge, NamesItsOwnRankToo) {
  Ranks run({"a", "b"});
  run.take_usual_steps();
  run.of(1).awaited = "all_reduce";
  expect_found(run.pass(4000), 0, false, 60);
}

TEST(HangJudge, LeavesAStepAloneThatTakesTwentyTimesAsLongAsOthers) {
  for (const double usual : {0.5, 3.0, 20.0}) {
    Ranks run({"a", "a"});
    run.take_steps(1, 30, usual);
    EXPECT_FALSE(run.pass(19 * usual)) << usual;
  }
}

TEST(HangJudge, LearnsLongerStepsAndNeverWaitsLongerThanTheLimit) {
  for (const auto& [usual, expected] : std::map<double, double>{{10, 200}, {60, 1200}, {200, 1800}}) {
    Ranks run({"a", "a"});
    run.take_steps(1, 30, usual);
    run.stop_signs_of(1);
    expect_found(run.pass(4000), 1, true, expected);
  }
}

TEST(HangJudge, AShorterLimitStaysTheLimit) {
  Ranks run({"a", "a"}, 0, 15);
  run.take_usual_steps();
  run.stop_signs_of(1);
  expect_found(run.pass(4000), 1, true, 15);
}

TEST(HangJudge, DoesNotLearnForPhasesThatComeSeldom) {
  for (const char* phase : {phase::saving, phase::validating, phase::painting}) {
    Ranks run({"a", "a"});
    run.take_usual_steps();
    for (int rank : {0, 1}) run.of(rank).phase = phase;
    EXPECT_FALSE(run.pass(1700)) << phase;
    run.stop_signs_of(1);
    expect_found(run.pass(4000), 1, true, 300);
  }
}

TEST(HangJudge, WhoWritesFilesMayWaitForTheStorageAsLongAsTheLimit) {
  Ranks run({"a", "a"});
  run.take_usual_steps();
  run.of(0).phase = phase::accounting;
  run.of(1).awaited = "all_reduce";
  expect_found(run.pass(4000), 0, false, limit);
}

TEST(HangJudge, WhoWaitsForSamplesLooksUpEverySecond) {
  Ranks run({"a", "a"});
  run.take_usual_steps();
  for (int rank : {0, 1}) run.of(rank).phase = phase::waiting_for_samples;
  for (int i = 0; i < 4000; ++i) {
    for (int rank : {0, 1}) run.of(rank).still_seconds = 0;
    ASSERT_FALSE(run.pass(1));
  }
  run.of(0).awaited = "all_reduce";
  expect_found(run.pass(4000), 1, false, limit);
}

TEST(HangJudge, TheFirstSamplesMayTakeFiveTimesAsLong) {
  Ranks run({"a", "a"});
  for (int rank : {0, 1}) run.of(rank).phase = phase::waiting_for_samples, run.of(rank).step = 7;
  run.of(0).awaited = "all_reduce";
  expect_found(run.pass(12000), 1, false, 5 * limit);
}

// A disk or a driver that never answers.
TEST(HangJudge, WhoStandsStillInWhatComesSeldomIsNamedAfterFiveTimesTheLimit) {
  for (const char* phase : {phase::first_step, phase::saving, phase::validating, phase::painting}) {
    Ranks run({"a", "b", "c"});
    run.take_usual_steps();
    for (int rank : {0, 1, 2}) run.of(rank).phase = phase;
    for (int rank : {0, 1}) run.of(rank).awaited = "all_reduce";
    expect_found(run.pass(20000), 2, false, 5 * limit);
    run.of(2).awaited = "all_reduce";
    EXPECT_FALSE(run.pass(20000)) << "all wait for somebody, in " << phase;
  }
}

// A file system that never answers.
TEST(HangJudge, WhoStandsStillInPlanningAndLoadingIsNamedAfterFiveTimesTheLimit) {
  for (const char* phase : {phase::starting, phase::loading}) {
    Ranks run({"a", "b", "c"});
    for (int rank : {0, 1, 2}) run.of(rank).phase = phase;
    for (int rank : {0, 2}) run.of(rank).awaited = "broadcast";
    expect_found(run.pass(20000), 1, false, 5 * limit);
  }
}

TEST(HangJudge, WhoEndsMayStandStill) {
  Ranks run({"a", "b"});
  for (int rank : {0, 1}) run.of(rank).phase = phase::ending;
  EXPECT_FALSE(run.pass(20000));
}

TEST(HangJudge, KnowsOfWhomNothingHasCome) {
  HangJudge judge(0, {"a", "a", "b", "b"}, limit);
  EXPECT_EQ(judge.never_heard(), (std::vector{1, 2, 3}));
  judge.hear(2, Sign(), 1);
  EXPECT_EQ(judge.never_heard(), (std::vector{1, 3}));
  EXPECT_FALSE(judge.find(1e6)) << "what never came proves nothing";
}

TEST(HangJudge, ProducersAreLeftToTheirTrainers) {
  Ranks run({"a", "a"});
  run.take_usual_steps();
  run.of(1).phase = phase::producing;
  run.of(0).awaited = "all_reduce";
  run.pass(1);
  run.stop_signs_of(1);
  EXPECT_FALSE(run.pass(4000));
}

TEST(HangJudge, WhoHasSaidThatItLeavesMayBeSilent) {
  Ranks run({"a", "a"});
  run.take_usual_steps();
  run.of(0).phase = phase::ending;
  run.of(1).leaves = true;
  run.pass(1);
  run.stop_signs_of(1);
  EXPECT_FALSE(run.pass(4000));
}

// Datagrams of one rank get lost; the steps of the others show that it is there.
TEST(HangJudge, ARunThatGoesOnIsNeverEnded) {
  Ranks run({"a", "b", "b"});
  run.take_usual_steps();
  run.silence(1);
  EXPECT_FALSE(run.go_on(4000));
}

TEST(HangJudge, NorByAFirewallThatDropsAllDatagramsFromNowOn) {
  Ranks run({"a", "b", "c"});
  run.take_usual_steps();
  run.silence(1);
  run.silence(2);
  EXPECT_FALSE(run.go_on(4000));
  for (int rank : {0, 1, 2}) run.of(rank).phase = phase::saving;
  EXPECT_FALSE(run.pass(1000)) << "their silence has proved nothing before";
}

// Of a run whose rank 0 produces.
TEST(HangJudge, AProducerThatHearsOfNoTrainerTrustsInTheParcelsThatAreTaken) {
  Ranks run({"a", "b", "c"});
  run.take_usual_steps();
  run.of(0).phase = phase::producing;
  run.of(0).step = 0;
  run.pass(1);
  run.silence(1);
  run.silence(2);
  for (int i = 0; i < 4000; ++i) {
    run.of(0).still_seconds = 0;
    ASSERT_FALSE(run.pass(1)) << i;
  }
  expect_found(run.pass(4000), 1, true, 4000 + limit);
}

TEST(HangJudge, AProducerThatHearsOfTrainersNamesASilentOneAfterAMinute) {
  Ranks run({"a", "b", "c"});
  run.take_usual_steps();
  run.of(0).phase = phase::producing;
  run.of(0).step = 0;
  run.stop_signs_of(2);
  expect_found(run.pass(4000), 2, true, 60);
}

// A switch starts anew.
TEST(HangJudge, HostsMayComeBackOneAfterTheOther) {
  for (const double outage : {100.0, 290.0}) {
    Ranks run({"a", "b", "c", "d"});
    run.take_usual_steps();
    for (const int rank : {1, 2, 3}) run.stop_signs_of(rank);
    run.of(3).awaited = "all_reduce";
    EXPECT_FALSE(run.pass(outage));
    for (const int rank : {1, 2, 3}) {
      run.bring_back(rank);
      EXPECT_FALSE(run.pass(20)) << "after host " << rank << " has come back";
    }
    EXPECT_FALSE(run.go_on(100));
  }
}

TEST(HangJudge, AHostThatDoesNotComeBackWithTheOthersIsNamedAMinuteLater) {
  Ranks run({"a", "b", "c"});
  run.take_usual_steps();
  run.stop_signs_of(2);
  run.stop_signs_of(1);
  EXPECT_FALSE(run.pass(100));
  run.of(1).awaited = "all_reduce";
  run.bring_back(1);
  EXPECT_FALSE(run.pass(59));
  expect_found(run.pass(4000), 2, true, 60);
}

TEST(HangJudge, HostsThatAreAllSilentAtOnceMayBeBehindABrokenNetwork) {
  Ranks run({"a", "b", "c"});
  run.take_usual_steps();
  run.stop_signs_of(1);
  run.stop_signs_of(2);
  expect_found(run.pass(4000), 1, true, 300);
}

TEST(HangJudge, AHostThatIsSilentAmongOthersIsNotBehindABrokenNetwork) {
  Ranks run({"a", "b", "c"});
  run.take_usual_steps();
  run.stop_signs_of(1);
  expect_found(run.pass(4000), 1, true, 60);
}

TEST(HangJudge, TheOthersNameASilentRankZero) {
  for (const auto& [host, expected] : std::map<std::string, double>{{"a", 60}, {"b", 300}}) {
    Ranks run({"a", host}, /*self=*/1);
    run.take_usual_steps();
    run.stop_signs_of(0);
    expect_found(run.pass(4000), 0, true, expected);
  }
}

TEST(HangJudge, AProducerDoesNotKnowWhetherTheRunStandsStill) {
  Ranks run({"a", "a"}, /*self=*/1);
  run.of(0).phase = phase::training;
  run.of(0).step = 30;
  run.of(0).slow_step_seconds = 1;
  run.of(1).phase = phase::producing;
  run.pass(1);
  run.stop_signs_of(0);
  expect_found(run.pass(4000), 0, true, limit);
}

TEST(HangJudge, AfterAPauseOfTheWholeRunAllBeginAnew) {
  Ranks run({"a", "a", "b"});
  run.take_usual_steps();
  run.sleep(3600);
  run.wake_up();
  run.stop_signs_of(1);
  expect_found(run.pass(4000), 1, true, 60);
}

TEST(HangJudge, JudgesAThousandRanksInNoTime) {
  std::vector<std::string> hosts;
  for (int i = 0; i < 1072; ++i) hosts.push_back("node-" + std::to_string(i / 8));
  HangJudge judge(0, hosts, limit);
  const Sign sign{phase::training, "all_reduce", false, 30, 0, 1};
  for (int i = 0; i < 1072; ++i) judge.hear(i, sign, 1000);
  double fastest = 1;
  for (int i = 0; i < 100; ++i) {
    const Stopwatch since;
    ASSERT_FALSE(judge.find(1003));
    fastest = std::min(fastest, since.seconds());
  }
  RecordProperty("microseconds", std::to_string(1e6 * fastest));
  EXPECT_LT(fastest, 300e-6) << "20 times what it takes, a third of what comparing each with each takes";
}

SlowStep after_steps(int number, double seconds) {
  SlowStep slow;
  double now = 0;
  for (int step = 1; step <= number; ++step) {
    for (double until = now + seconds; now < until; now += 0.25) slow.look(phase::training, step, now);
    slow.look(phase::accounting, step, now);
    now += 0.25;
  }
  return slow;
}

TEST(SlowStep, IsKnownAfterTwentySteps) {
  EXPECT_EQ(after_steps(20, 2).seconds(), 0);
  EXPECT_NEAR(after_steps(21, 2).seconds(), 2, 0.5);
  EXPECT_GE(after_steps(21, 2).seconds(), 2);
}

TEST(SlowStep, WhatComesBetweenStepsIsNotPartOfThem) {
  SlowStep slow = after_steps(30, 2);
  slow.look(phase::saving, 30, 100);
  slow.look(phase::saving, 30, 900);
  slow.look(phase::training, 31, 900.25);
  slow.look(phase::training, 31, 902);
  slow.look(phase::accounting, 31, 902.25);
  EXPECT_LT(slow.seconds(), 3);
}

TEST(SlowStep, OneSlowStepIsForgotten) {
  SlowStep slow = after_steps(30, 2);
  double now = 100;
  int step = 31;
  slow.look(phase::accounting, 30, now);
  const auto take = [&](double seconds) {
    for (const double until = now + seconds; now < until; now += 0.25) slow.look(phase::training, step, now);
    ++step;
  };
  take(40);
  take(2);
  EXPECT_GE(slow.seconds(), 40);
  for (int i = 0; i < 100; ++i) take(2);
  EXPECT_NEAR(slow.seconds(), 15, 2);
  for (int i = 0; i < 300; ++i) take(2);
  EXPECT_LT(slow.seconds(), 3);
}

TEST(SlowStep, APauseIsNoStep) {
  SlowStep slow = after_steps(30, 2);
  slow.look(phase::training, 31, 100);
  slow.pass_over(700);
  slow.look(phase::training, 31, 700.25);
  slow.look(phase::training, 32, 701);
  slow.look(phase::training, 33, 702);
  EXPECT_LT(slow.seconds(), 3);
}

}  // namespace
}  // namespace millrace
