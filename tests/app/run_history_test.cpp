#include "run/run_history.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/temp_dir.h"
#include "millrace/core/files.h"
#include "millrace/core/run_files.h"

namespace millrace {
namespace {

using nlohmann::json;

class RunHistory : public testing::Test {
 protected:
  RunDescription description(const std::string& lr, const std::string& libtorch, const std::vector<json>& ranks) {
    const json environment = {{"millrace", "0.1.0"}, {"LibTorch", libtorch}, {"program", "aa"}, {"ranks", ranks}};
    return {"optim:\n  lr: " + lr + "\nrun:\n  dir: r\n", environment.dump(), ""};
  }

  // As the start does behind it.
  void leave(const RunDescription& description) {
    run_.write(run_file::config, description.config);
    run_.write(run_file::environment, description.environment);
  }

  std::vector<json> lines() {
    std::vector<json> lines;
    std::ifstream in(run_ / run_file::starts);
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }

  const json trainer_ = {{"rank", 0}, {"host", "a"}, {"role", "trainer"}};
  const json producer_ = {{"rank", 1}, {"host", "b"}, {"role", "producer"}};
  test::TempDir run_;
};

TEST_F(RunHistory, AFirstStartHasNothingBefore) {
  add_start(run_.path(), description("0.1", "2.10", {trainer_, producer_}), {});
  ASSERT_EQ(lines().size(), 1u);
  const auto line = lines()[0];
  EXPECT_EQ(line["before"], nullptr);
  EXPECT_EQ(line["changed"], json::object());
  EXPECT_EQ(line["step"], 0);
  EXPECT_EQ(line["checkpoint"], nullptr);
  EXPECT_EQ(line["ranks"], 2);
  EXPECT_EQ(line["trainers"], 1);
  EXPECT_EQ(line["producers"], 1);
  EXPECT_EQ(line["hosts"], (json{"a", "b"}));
  EXPECT_EQ(line["LibTorch"], "2.10");
  EXPECT_THAT(line["time"].get<std::string>(), testing::MatchesRegex("20..-..-..T..:..:..Z"));
}

TEST_F(RunHistory, AStartNamesItsJobAndItsRestart) {
  const auto same = description("0.1", "2.10", {trainer_});
  ::setenv("SLURM_JOB_ID", "41", 1);
  ::setenv("SLURM_RESTART_COUNT", "2", 1);
  add_start(run_.path(), same, {});
  ::unsetenv("SLURM_JOB_ID");
  ::unsetenv("SLURM_RESTART_COUNT");
  add_start(run_.path(), same, {});
  ASSERT_EQ(lines().size(), 2u);
  EXPECT_EQ(lines()[0]["job"], 41);
  EXPECT_EQ(lines()[0]["restart"], 2);
  EXPECT_EQ(lines()[1]["job"], nullptr);
  EXPECT_EQ(lines()[1]["restart"], nullptr);
}

TEST_F(RunHistory, ALaterStartTellsHowTheOneBeforeEndedAndWhatChanged) {
  const auto first = description("0.1", "2.10", {trainer_, producer_});
  add_start(run_.path(), first, {});
  leave(first);
  run_.write(run_file::state, R"({"state": "requeue", "step": 4000, "exit": 76, "reason": "rank 1 hangs"})");
  run_.write(run_file::metrics, "{\"step\": 4000}\n{\"step\": 4012, \"loss\": null}\n{\"step\": 40");
  std::filesystem::create_directories(run_ / run_file::fault);
  run_.write("fault/rank-00001.json",
             R"({"rank": 1, "host": "b", "reason": "hangs", "exit": 76, "time": 7.5, "gpu": "GPU-1", "other": [1]})");
  run_.write("fault/rank-00002.json", "{\"rank\": 2, ");

  Start start;
  start.state.step = 4000;
  add_start(run_.path(), description("0.2", "2.11", {trainer_}), start);
  ASSERT_EQ(lines().size(), 2u);
  const auto line = lines()[1];
  EXPECT_EQ(line["step"], 4000);
  EXPECT_EQ(line["changed"], (json{{"optim.lr", {"0.1", "0.2"}},
                                   {"LibTorch", {"2.10", "2.11"}},
                                   {"hosts", {"b", ""}},
                                   {"producers", {"1", "0"}}}));
  auto before = line["before"];
  EXPECT_THAT(before["time"].get<std::string>(), testing::MatchesRegex("20..-..-..T..:..:..Z"));
  before.erase("time");
  EXPECT_EQ(
      before,
      (json{{"state", "requeue"},
            {"step", 4000},
            {"reached", 4012},
            {"exit", 76},
            {"reason", "rank 1 hangs"},
            {"fault_files", 1},
            {"faults",
             {{{"rank", 1}, {"host", "b"}, {"gpu", "GPU-1"}, {"exit", 76}, {"reason", "hangs"}, {"time", 7.5}}}}}));
}

TEST_F(RunHistory, AStartThatLeftNoStateDidNotBegin) {
  const auto same = description("0.1", "2.10", {trainer_});
  run_.write(run_file::state, R"({"state": "failed", "step": 7, "exit": 70, "reason": "a bug"})");
  for (int i = 0; i < 3; ++i) add_start(run_.path(), same, {});
  ASSERT_EQ(lines().size(), 3u);
  EXPECT_EQ(lines()[0]["before"]["reason"], "a bug");
  EXPECT_EQ(lines()[1]["before"], (json{{"state", "did not begin"}}));
  EXPECT_EQ(lines()[2]["before"]["state"], "did not begin");
  run_.write(run_file::state, R"({"state": "failed", "step": 7, "exit": 70, "reason": "another one"})");
  add_start(run_.path(), same, {});
  EXPECT_EQ(lines()[3]["before"]["reason"], "another one");
}

// Of a thousand ranks most leave because of one.
TEST_F(RunHistory, TheCauseIsAmongTheFaultsThatAreKept) {
  run_.write(run_file::state, R"({"state": "requeue"})");
  std::filesystem::create_directories(run_ / run_file::fault);
  for (int rank = 0; rank < 30; ++rank)
    run_.write(fmt::format("fault/rank-{:05}.json", rank),
               fmt::format(R"({{"rank": {}, "exit": {}, "time": {}}})", rank, rank == 29 ? 70 : 74, 100 - rank));
  add_start(run_.path(), description("0.1", "2.10", {trainer_}), {});
  const auto before = lines().at(0)["before"];
  EXPECT_EQ(before["fault_files"], 30);
  std::vector<int> ranks;
  for (const auto& fault : before["faults"]) ranks.push_back(fault["rank"]);
  EXPECT_EQ(ranks, (std::vector{29, 28, 27, 26, 25, 24, 23, 22, 21, 20}));
}

TEST_F(RunHistory, SettingsThatComeAndGoAreChanges) {
  auto one = description("0.1", "2.10", {trainer_}), other = one;
  one.config = "data:\n  filters: {}\n";
  other.config = "data:\n  filters:\n    width: \">=512\"\n";
  leave(one);
  add_start(run_.path(), other, {});
  EXPECT_EQ(lines().at(0)["changed"],
            (json{{"data.filters", {"{}", nullptr}}, {"data.filters.width", {nullptr, "\">=512\""}}}));
  // Another program may have other keys.
  other.environment = description("0.1", "2.11", {trainer_}).environment;
  add_start(run_.path(), other, {});
  EXPECT_EQ(lines().at(1)["changed"], (json{{"LibTorch", {"2.10", "2.11"}}}));
}

TEST_F(RunHistory, ALineThatWasCutShortTakesNoOtherAlong) {
  const auto same = description("0.1", "2.10", {trainer_});
  run_.write(run_file::starts, R"({"time": "2026)");
  EXPECT_TRUE(add_start(run_.path(), same, {}));
  std::ifstream in(run_ / run_file::starts);
  std::string torn, whole;
  ASSERT_TRUE(std::getline(in, torn) && std::getline(in, whole));
  EXPECT_EQ(json::parse(whole)["LibTorch"], "2.10");
}

TEST_F(RunHistory, WhatIsNoFileOfOursStopsNoStart) {
  run_.write(run_file::config, "- a\n- b: {");
  run_.write(run_file::environment, R"({"ranks": 7, "LibTorch": [1]})");
  run_.write(run_file::state, R"({"state": [1], "reason": ")" + std::string(1 << 20, 'x') + "\"}");
  run_.write(run_file::metrics, "no line end");
  add_start(run_.path(), description("0.1", "2.10", {trainer_}), {});
  const auto line = lines().at(0);
  EXPECT_EQ(line["before"]["reason"], std::string(2000, 'x'));
  EXPECT_EQ(line["before"]["reached"], nullptr);
  EXPECT_EQ(line["changed"], json::object());
  EXPECT_LT(line.dump().size(), 3000u);
}

}  // namespace
}  // namespace millrace
