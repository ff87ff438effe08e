#include "millrace/checkpoint/retention.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <set>

#include "core/temp_dir.h"
#include "error_of.h"
#include "millrace/checkpoint/line_files.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/checkpoint/run_lease.h"
#include "millrace/checkpoint/writer.h"
#include "millrace/core/append_file.h"
#include "millrace/core/files.h"
#include "millrace/core/process_name.h"
#include "millrace/core/run_files.h"
#include "own_log.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Folders alone: what is in them is nothing to retention.
class Retention : public ::testing::Test {
 protected:
  void make(std::initializer_list<int> steps) const {
    for (const int step : steps) std::filesystem::create_directories(path(step));
  }
  std::filesystem::path path(int step) const { return folder_.path() / "checkpoints" / step_name(step); }
  std::vector<std::int64_t> left(std::int64_t newest, int keep, const std::set<std::int64_t>& unread = {}) const {
    delete_old(folder_.path(), newest, keep, unread);
    std::vector<std::int64_t> steps;
    for (const auto& checkpoint : list_checkpoints(folder_.path())) steps.push_back(checkpoint.step);
    return steps;
  }

  test::TempDir folder_;
};

TEST_F(Retention, KeepsTheNewestAndWhatIsMarked) {
  make({1, 2, 3, 4});
  keep_for_good(path(1));
  EXPECT_THAT(left(4, 2), ElementsAre(4, 3, 1));
}

TEST_F(Retention, KeepsWhatCannotBeLookedAt) {
  make({1, 2, 3, 4});
  std::filesystem::create_symlink("KEEP", path(1) / "KEEP");  // ELOOP
  EXPECT_THAT(left(4, 2), ElementsAre(4, 3, 1));
}

TEST_F(Retention, WhatIsNewerThanTheRunCountsForNothing) {
  make({1, 2, 3, 9});
  EXPECT_THAT(left(3, 2), ElementsAre(9, 3, 2));
}

TEST_F(Retention, WhatNobodyCouldReadCountsForNothingAndGoesWithItsTime) {
  make({1, 2, 3, 4, 5, 6});
  EXPECT_THAT(left(6, 2, {2, 4, 5}), ElementsAre(6, 5, 4, 3));
  make({7});
  EXPECT_THAT(left(7, 2, {2, 4, 5}), ElementsAre(7, 6));
}

// In a container two lives may have the same host, process and start.
TEST_F(Retention, WhatIsAbandonedAgainKeepsWhatWasAbandonedBefore) {
  for (int life = 1; life <= 3; ++life) {
    make({1, 2, 3});
    for (const int step : {2, 3}) write_file_atomically(path(step) / "MANIFEST.json", std::to_string(life));
    abandon_newer(folder_.path(), 1);
    EXPECT_THAT(left(1, 2), ElementsAre(1));
  }
  std::multiset<std::string> kept;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() / "checkpoints"))
    if (entry.path().extension().string().starts_with(".abandoned-"))
      kept.insert(entry.path().stem().string() + " " + read_file(entry.path() / "MANIFEST.json"));
  EXPECT_THAT(kept, ElementsAre("step-00000002 1", "step-00000002 2", "step-00000002 3", "step-00000003 1",
                                "step-00000003 2", "step-00000003 3"));
}

// Until then a start puts them back (NOTE [Lines go with their checkpoints]).
TEST_F(Retention, LinesThatWerePutAsideAreAbandonedWithTheirCheckpoints) {
  make({1, 2});
  folder_.write("metrics.jsonl", "1");
  for (const char* life : {"2", "another 2"}) {
    folder_.write("metrics.jsonl.beyond-step-00000001", life);
    abandon_newer(folder_.path(), 1);
    EXPECT_FALSE(std::filesystem::exists(folder_ / "metrics.jsonl.beyond-step-00000001"));
  }
  std::multiset<std::string> kept;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    if (entry.path().extension().string().starts_with(".abandoned-"))
      kept.insert(entry.path().stem().string() + " " + read_file(entry.path()));
  EXPECT_THAT(kept,
              ElementsAre("metrics.jsonl.beyond-step-00000001 2", "metrics.jsonl.beyond-step-00000001 another 2"));
  EXPECT_EQ(read_file(folder_ / "metrics.jsonl"), "1");
}

// As a kill between two renames leaves them.
TEST_F(Retention, LinesKeepTheirNamesAsLongAsALaterCheckpoint) {
  make({1, 2, 3});
  const auto lines = folder_.write("metrics.jsonl.beyond-step-00000001", "2\n3\n");
  std::filesystem::rename(path(2), path(2).string() + ".abandoned-0123abcd");
  abandon_lines(folder_.path());
  EXPECT_TRUE(std::filesystem::exists(lines)) << "the next start goes on from 3";
  std::filesystem::rename(path(3), path(3).string() + ".abandoned-0123abcd");
  abandon_lines(folder_.path());
  EXPECT_FALSE(std::filesystem::exists(lines));
}

TEST_F(Retention, WhatGoesLastIsTheNewest) {
  make({1, 2, 3});
  const auto lines = folder_.write("metrics.jsonl.beyond-step-00000001", "2\n3\n");
  // A name that leaves no room for a longer one: its rename fails, as a kill would end the life there.
  const auto third = path(3).parent_path() / ("step-" + std::string(240, '0') + "3");
  std::filesystem::rename(path(3), third);
  EXPECT_ANY_THROW(abandon_newer(folder_.path(), 1));
  EXPECT_FALSE(std::filesystem::exists(path(2)));
  EXPECT_TRUE(std::filesystem::exists(third));
  EXPECT_TRUE(std::filesystem::exists(lines));
}

// What people have put beside them, under names of their own, is theirs.
TEST_F(Retention, OfTheDamagedOnesTheLastStays) {
  const auto checkpoints = folder_.path() / "checkpoints";
  const auto names = [&] {
    std::set<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoints))
      all.insert(entry.path().filename().string());
    return all;
  };
  make({1, 2, 10});
  write_file_atomically(path(10) / "MANIFEST.json", "the last");
  for (const char* name : {"step-00000005.damaged", "step-00000010.damaged", "mine.damaged", "step-9.damaged",
                           "step-00000010.damaged-by-me"}) {
    std::filesystem::create_directory(checkpoints / name);
    write_file_atomically(checkpoints / name / "MANIFEST.json", "another");
  }
  EXPECT_TRUE(put_aside(path(10)));
  EXPECT_THAT(names(), ElementsAre("mine.damaged", "step-00000001", "step-00000002", "step-00000010.damaged",
                                   "step-00000010.damaged-by-me", "step-9.damaged"));
  EXPECT_EQ(read_file(checkpoints / "step-00000010.damaged/MANIFEST.json"), "the last");
  EXPECT_TRUE(put_aside(path(2)));
  EXPECT_THAT(names(), ElementsAre("mine.damaged", "step-00000001", "step-00000002.damaged",
                                   "step-00000010.damaged-by-me", "step-9.damaged"));
  EXPECT_EQ(read_file(checkpoints / "mine.damaged/MANIFEST.json"), "another");
  EXPECT_FALSE(put_aside(path(3))) << "there is none";
}

std::string reopened(const std::string& text, std::int64_t last_step) {
  test::TempDir run;
  const auto path = run.write("metrics.jsonl", text);
  cut_line_files(run.path(), last_step);
  AppendFile(path).add("{\"step\":99}\n");
  return read_file(path);
}

TEST(LineFiles, ThatAreNotThereAreNotMade) {
  test::TempDir run;
  cut_line_files(run.path(), 0);
  EXPECT_TRUE(std::filesystem::is_empty(run.path()));
}

TEST(LineFiles, MayHaveStepsThatAreNoNumbers) {
  const std::string lines = "{\"step\":2}\n{\"step\":null,\"note\":\"mine\"}\n{\"step\":\"three\"}\n";
  EXPECT_EQ(reopened(lines + "{\"step\":3}\n", 2), lines + "{\"step\":99}\n");
}

TEST(LineFiles, LoseWhatAResumedRunWritesAgain) {
  const std::string lines = "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.25}\n{\"step\":3,\"loss\":0.125}\n";
  EXPECT_EQ(reopened(lines, 2), "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.25}\n{\"step\":99}\n");
  EXPECT_EQ(reopened(lines, 3), lines + "{\"step\":99}\n");
  EXPECT_EQ(reopened(lines, 0), "{\"step\":99}\n");
}

// A life that begins at another run's checkpoint goes on with none of them, also where that one stands further on.
TEST(LineFiles, OfARunThatABranchIsWrittenOverLieBesideIt) {
  test::TempDir run;
  const std::string lines = "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.25}\n";
  const auto path = run.write("metrics.jsonl", lines);
  cut_line_files(run.path(), 130, /*elsewhere=*/true);
  EXPECT_EQ(read_file(path), "");
  EXPECT_EQ(read_file(run / "metrics.jsonl.beyond-step-00000000"), lines);
  EXPECT_EQ(ending_of_try(run.path(), 0), ".beyond-step-00000000");
  AppendFile(path).add("{\"step\":131,\"loss\":0.1}\n");
  std::filesystem::create_directories(run.path() / "checkpoints" / step_name(2));
  cut_line_files(run.path(), 2);  // it was killed before its first save, and the run itself goes on
  EXPECT_EQ(read_file(path), lines);

  test::TempDir branch;  // in a folder of its own, killed and started in the same way again
  const auto own = branch.write("metrics.jsonl", "{\"step\":131,\"loss\":0.1}\n");
  cut_line_files(branch.path(), 130, /*elsewhere=*/true);
  EXPECT_EQ(read_file(own), "");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(branch.path()), {}), 1) << "nobody needs them";
}

// They are looked for in blocks of 1 MiB, from the end.
TEST(LineFiles, LoseLinesThatAreNotInOneBlock) {
  const auto line = [](int step) { return fmt::format("{{\"step\":{},\"text\":\"{:x>700000}\"}}\n", step, ""); };
  EXPECT_TRUE(reopened(line(1) + line(2) + line(3), 1) == line(1) + "{\"step\":99}\n");
}

TEST(LineFiles, LoseALineCutShortByACrash) {
  EXPECT_EQ(reopened("{\"step\":1}\n{\"step\":2,\"lo", 5), "{\"step\":1}\n{\"step\":99}\n");
}

// Of a life that went back from step 3 to step 1; now a start goes on from 3 again.
class EventFiles : public ::testing::Test {
 protected:
  EventFiles() {
    std::filesystem::create_directories(run_.path() / "checkpoints" / step_name(3));
    run_.write("metrics.jsonl", "{\"step\":1}\n");
    run_.write("metrics.jsonl.beyond-step-00000001", "{\"step\":2}\n{\"step\":3}\n");
  }
  std::string lines() const { return read_file(run_ / "metrics.jsonl"); }
  Error refusal() const {
    return test::error_of([&] { cut_line_files(run_.path(), 3); });
  }
  // Nothing has changed: the next start has all that it needs to try again.
  void expect_untouched() const {
    EXPECT_EQ(lines(), "{\"step\":1}\n");
    EXPECT_EQ(read_file(run_ / "metrics.jsonl.beyond-step-00000001"), "{\"step\":2}\n{\"step\":3}\n");
  }

  test::TempDir run_;
  const std::filesystem::path events_ = run_ / "tensorboard";
  const std::string ending_ = ".beyond-step-00000001";
};

TEST_F(EventFiles, AFolderThatCannotBeListedEndsTheStartBeforeLinesComeBack) {
  std::filesystem::create_symlink("tensorboard", events_);  // ELOOP
  const auto error = refusal();
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_THAT(error.what(), HasSubstr("cannot read " + events_.string()));
  expect_untouched();
}

TEST_F(EventFiles, WhatIsNoFolderHoldsNone) {
  run_.write("tensorboard", "in the way");
  cut_line_files(run_.path(), 3);
  EXPECT_EQ(lines(), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
  EXPECT_EQ(read_file(events_), "in the way");
}

// A viewer would hide the lines that come back.
TEST_F(EventFiles, WhatWasGivenUpAndCannotBeRemovedEndsTheStart) {
  const auto kept = events_ / ("events.1" + ending_);
  std::filesystem::create_directories(kept / "in the way");
  const auto error = refusal();
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_THAT(error.what(), HasSubstr("cannot remove " + kept.string()));
  expect_untouched();
}

// Once the lines of before are abandoned: what a viewer shows is no reason not to train.
TEST_F(EventFiles, WhatCannotGetItsNameIsOnlyToldOf) {
  std::filesystem::remove(run_ / "metrics.jsonl.beyond-step-00000001");
  std::filesystem::create_directories(events_ / "events.2" / "in the way");
  for (const char* name : {"events.1", "events.2", "events.3"}) write_file_atomically(events_ / (name + ending_), name);
  run_.write("metrics.jsonl", "{\"step\":1}\n{\"step\":4}\n");
  const test::OwnLog log;
  cut_line_files(run_.path(), 3);
  EXPECT_EQ(log.count("TensorBoard will not show all steps"), 1) << log.text();
  EXPECT_EQ(log.count((events_ / ("events.2" + ending_)).string()), 1) << log.text();
  EXPECT_EQ(lines(), "{\"step\":1}\n");
  for (const char* name : {"events.1", "events.3"}) {
    EXPECT_EQ(read_file(events_ / name), name);
    EXPECT_FALSE(std::filesystem::exists(events_ / (name + ending_))) << name;
  }
  EXPECT_EQ(read_file(events_ / ("events.2" + ending_)), "events.2");
}

// What CheckpointWriter removes is room for a checkpoint.
TEST_F(Retention, WhatAKilledRunLeftIsCountedAndRemoved) {
  make({1});
  write_file_atomically(path(1) / "shard", std::string(1000, 'x'));
  EXPECT_EQ(leftover_bytes(folder_.path()), 0);
  const auto checkpoints = folder_.path() / "checkpoints";
  const auto put = [&](const std::string& name) {
    std::filesystem::create_directories(checkpoints / name);
    write_file_atomically(checkpoints / name / "shard", std::string(500, 'x'));
  };
  // As CheckpointWriter calls it, by the nonce of a real lease.
  put(fmt::format("step-00000002.tmp-{}-1", RunLease::acquire(Group(), folder_.path()).nonce()));
  put(temporary_name("step-00000000"));  // as a start that looks whether it can write there
  put("step-00000001.trash");
  const auto theirs = {"step-00000001.tmp", "step-00000001.tmp-old", "step-00000001.tmp-1",
                       "best.trash",        "step-1.trash",          "notes.tmp-0123456789abcdef-17-0123abcd-1"};
  for (const auto* name : theirs) put(name);
  EXPECT_EQ(leftover_bytes(folder_.path()), 1500);
  remove_leftover_checkpoints(checkpoints);
  for (const auto* name : theirs) EXPECT_TRUE(std::filesystem::exists(checkpoints / name / "shard")) << name;
  EXPECT_EQ(leftover_bytes(folder_.path()), 0);
  EXPECT_TRUE(std::filesystem::exists(path(1) / "shard"));
  EXPECT_EQ(leftover_bytes(folder_.path() / "nowhere"), 0);
}

}  // namespace
}  // namespace millrace
