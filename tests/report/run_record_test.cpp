#include "millrace/report/run_record.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <ctime>

#include "core/temp_dir.h"
#include "millrace/core/clock.h"
#include "millrace/core/error.h"
#include "millrace/core/run_files.h"

namespace millrace {
namespace {

using testing::ElementsAre;

TEST(RunRecord, TheLaterLineOfAStepCounts) {
  test::TempDir run;
  run.write("metrics.jsonl",
            "{\"step\":1,\"loss\":1.0}\n{\"step\":2,\"loss\":2.0}\n{\"step\":3,\"loss\":3.0}\n"
            "{\"step\":2,\"loss\":2.5,\"time\":\"t2\"}\n{\"step\":3,\"loss\":null,\"stages\":{\"read\":0.5}}\n{"
            "\"step\":4,\"lo");
  const auto record = read_run(run.path());
  EXPECT_THAT(record.series("loss").steps, ElementsAre(1, 2, 3));
  EXPECT_EQ(record.series("loss").values[1], 2.5);
  EXPECT_TRUE(std::isnan(record.series("loss").values[2]));
  EXPECT_EQ(record.last("stages/read"), 0.5);
  EXPECT_EQ(record.end, "t2");
  EXPECT_TRUE(std::isnan(record.last("nothing")));
}

TEST(RunRecord, EvaluationsAreInTheOrderOfSteps) {
  test::TempDir run;
  run.write("metrics.jsonl", "{\"step\":4000,\"loss\":1.0}\n");
  run.write("evaluation.jsonl",
            "{\"step\":4000,\"fid\":1}\n{\"step\":4001,\"fid\":0}\n"  // gone back from there
            "{\"step\":1000,\"fid\":2}\n{\"step\":1000,\"fid\":3}\n");
  std::vector<double> fids;
  for (const auto& line : read_run(run.path()).evaluations) fids.push_back(line["fid"]);
  EXPECT_THAT(fids, ElementsAre(2, 3, 1));
}

TEST(RunRecord, TheNewestStartsFirstStepIsKnown) {
  test::TempDir run;
  run.write("metrics.jsonl",
            "{\"step\":1,\"loss\":1.0,\"time\":\"2026-01-01T00:00:00Z\"}\n"
            "{\"step\":2,\"loss\":1.0,\"time\":\"2026-01-02T00:00:00Z\"}\n");
  EXPECT_FALSE(read_run(run.path()).newest_start_step);
  run.write("environment.json", "{\"time\":\"2026-01-01T12:00:00Z\"}");
  EXPECT_EQ(read_run(run.path()).newest_start_step, 2);
  run.write("environment.json", "{\"time\":\"2026-01-03T12:00:00Z\"}");
  EXPECT_EQ(read_run(run.path()).newest_start_step, 3);
}

// Its first steps have the later times.
TEST(RunRecord, TheNewestStartsFirstStepIsKnownAfterAClockWentBack) {
  test::TempDir run;
  std::string lines;
  for (int step = 1; step <= 6; ++step)
    lines +=
        fmt::format("{{\"step\":{},\"loss\":1.0,\"time\":\"2026-01-{}T00:00:00Z\"}}\n", step, step <= 4 ? "09" : "02");
  run.write("metrics.jsonl", lines);
  run.write("environment.json", "{\"time\":\"2026-01-01T12:00:00Z\"}");
  EXPECT_EQ(read_run(run.path()).newest_start_step, 1) << "of a version without starts.jsonl";
  const std::string starts =
      "{\"time\":\"2026-01-08T12:00:00Z\",\"step\":0,\"ranks\":2}\n"
      "{\"time\":\"2026-01-01T12:00:00Z\",\"step\":4,\"ranks\":2}\n";
  run.write("starts.jsonl", starts);
  EXPECT_EQ(read_run(run.path()).newest_start_step, 5);
  run.write("starts.jsonl", starts + "{\"time\":\"2026-01-03T12:00:00Z\",\"step\":6,\"ranks\":0}\n");
  EXPECT_EQ(read_run(run.path()).newest_start_step, 5) << "nothing was left to train";
}

TEST(RunRecord, PicturesOfATimeThatWasGoneBackFromAreLeftOut) {
  test::TempDir run;
  run.write("metrics.jsonl", "{\"step\":2500,\"loss\":1.0}\n{\"step\":3500,\"loss\":1.0}\n");
  run.write("STATE", R"({"state":"running","step":3000})");
  run.write("environment.json", "{\"time\":\"" + utc_of(std::time(nullptr) - 3600) + "\"}");
  std::filesystem::create_directories(run / "samples");
  const auto paint = [&](int step, int hours_ago) {
    const auto file = run.write("samples/" + step_name(step) + ".png", "");
    std::filesystem::last_write_time(file,
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(hours_ago));
  };
  paint(3000, 2), paint(3600, 0), paint(9000, 2);
  const auto steps_of = [](const RunRecord& record) {
    std::vector<std::int64_t> steps;
    for (const auto& picture : record.pictures) steps.push_back(picture.step);
    return steps;
  };
  EXPECT_THAT(steps_of(read_run(run.path())), ElementsAre(3000, 3600));
  std::filesystem::remove(run / "environment.json");
  EXPECT_THAT(steps_of(read_run(run.path())), ElementsAre(3000, 3600, 9000)) << "nobody knows";
}

TEST(RunRecord, RunsOfOneNameAreToldApart) {
  std::vector<RunRecord> runs(3);
  runs[0].folder = "/a/x/run/", runs[1].folder = "/b/x/run", runs[2].folder = "/other";
  for (auto& run : runs) run.name = run.folder == "/other" ? "other" : "run";
  tell_apart(runs);
  EXPECT_EQ(runs[0].name, "a/x/run");
  EXPECT_EQ(runs[1].name, "b/x/run");
  EXPECT_EQ(runs[2].name, "other");
}

TEST(RunRecord, AFolderThatIsNoRunIsRefused) {
  test::TempDir folder;
  try {
    read_run(folder.path());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_THAT(error.what(), testing::HasSubstr(folder.path().string()));
  }
}

TEST(RunRecord, BrokenFilesAreLeftOut) {
  test::TempDir run;
  run.write("metrics.jsonl", "[1]\n\"text\"\n{\"step\":\"one\"}\n\xff\xfe\n{}\n");
  run.write("ledger.json", "{\"rows\": 3,");
  run.write("STATE", "");
  const auto record = read_run(run.path());
  EXPECT_TRUE(record.metrics.empty());
  EXPECT_TRUE(record.ledger.is_null());
  EXPECT_TRUE(record.state.is_null());
}

// Whoever made the folder.
TEST(RunRecord, FilesOfOtherShapesAreLeftOut) {
  test::TempDir run;
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  run.write("metrics.jsonl", "{\"step\":1,\"loss\":1.0,\"time\":\"2026-01-01T00:00:00Z\"}\n{\"step\":" + deep + "}\n");
  run.write("evaluation.jsonl", "{\"step\":1,\"fid\":" + deep + "}\n{\"step\":\"one\"}\n{\"step\":1,\"fid\":2}\n");
  run.write("environment.json", R"({"ranks":{"a":1},"time":5})");
  run.write("STATE", R"({"state":[],"step":"two"})");
  std::filesystem::create_directories(run / "samples");
  run.write("samples/" + step_name(7) + ".png", "");
  const auto record = read_run(run.path());
  EXPECT_THAT(record.series("loss").values, ElementsAre(1.0));
  EXPECT_EQ(record.evaluations.size(), 2u);
  EXPECT_EQ(record.pictures.size(), 1u) << "nobody knows when the run was started";
  run.write("ledger.json", "{\"rejected\":" + deep + "}");
  EXPECT_TRUE(read_run(run.path()).ledger.is_null());
}

std::vector<std::string> texts_of(const std::vector<Event>& events) {
  std::vector<std::string> texts;
  for (const auto& event : events) texts.push_back(event.when + " " + event.what);
  return texts;
}

TEST(Events, ComplaintsThatDifferInNumbersAreOne) {
  test::TempDir run;
  run.write("config.yaml", "");
  for (const char* folder : {"log", "fault"}) std::filesystem::create_directories(run / folder);
  run.write("log/rank-00000.log",
            "2026-11-23T20:00:00Z info trainer/0 started in 1.5 s\n"
            "2026-11-23T20:00:01Z warning trainer/0 step 7 step 8: loss nan is not finite; samples: a/1, b/x y\n"
            "2026-11-23T20:00:02Z warning trainer/0 step 7 ledger.json stays as it was: no room\n"
            "2026-11-24T20:00:03Z warning trainer/0 step 99 step 100: loss 7.5 is not finite; samples: c/9, d/z y\n");
  const auto events = read_run(run.path()).events;
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].when, "2026-11-23 20:00:01");
  EXPECT_EQ(events[1].last, "2026-11-24 20:00:03");
  EXPECT_EQ(events[1].count, 2);
  EXPECT_THAT(events[1].what, testing::HasSubstr("step 8: loss nan")) << "the words of that date";
  EXPECT_EQ(events[2].count, 1);
}

TEST(Events, TheLogsOfAllRanksAreRead) {
  test::TempDir run;
  run.write("config.yaml", "");
  std::filesystem::create_directories(run / "log/rank-00009.log");
  run.write("log/rank-00000.log",
            "2026-11-23T20:00:02Z warning producer/0 an archive is gone: 2\n"
            "2026-11-23T20:00:04Z warning producer/0 an archive is gone: 3\n"
            "2026-11-23T20:00:06Z error producer/0 all agree that it is over\n");
  run.write("log/rank-00002.log",
            "2026-11-23T20:00:01Z info trainer/2 started in 1.5 s\n"
            "2026-11-23T20:00:03Z warning trainer/2 step 7 step 8: loss nan is not finite\n"
            "2026-11-23T20:00:06Z error trainer/2 step 8 all agree that it is over\n");
  run.write("log/rank-00003.log", "2026-11-23T20:00:05Z warning trainer/3 what no other rank knows\n");
  run.write("log/stacks-rank-00003.txt", "2026-11-23T20:00:05Z warning is in a stack\n");
  EXPECT_THAT(texts_of(read_run(run.path()).events),
              testing::ElementsAre("2026-11-23 20:00:01 info trainer/2 started in 1.5 s",
                                   "2026-11-23 20:00:02 warning producer/0 an archive is gone: 2",
                                   "2026-11-23 20:00:03 warning trainer/2 step 7 step 8: loss nan is not finite",
                                   "2026-11-23 20:00:05 warning trainer/3 what no other rank knows",
                                   "2026-11-23 20:00:06 error producer/0 all agree that it is over"));
}

// Logs are read one behind the other.
TEST(Events, AComplaintOfSeveralRanksHasItsFirstWordsAndItsLastDate) {
  test::TempDir run;
  run.write("config.yaml", "");
  std::filesystem::create_directories(run / "log");
  run.write("log/rank-00000.log", "2026-11-23T20:00:30Z warning trainer/0 host n1 is slow: 3\n");
  run.write("log/rank-00001.log",
            "2026-11-23T20:00:10Z warning trainer/1 host n2 is slow: 5\n"
            "2026-11-23T20:10:00Z warning trainer/1 host n2 is slow: 6\n");
  run.write("log/rank-00002.log", "2026-11-23T20:05:00Z warning trainer/2 host n3 is slow: 7\n");
  const auto events = read_run(run.path()).events;
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].when, "2026-11-23 20:00:10");
  EXPECT_EQ(events[0].what, "warning trainer/1 host n2 is slow: 5");
  EXPECT_EQ(events[0].count, 4);
  EXPECT_EQ(events[0].last, "2026-11-23 20:10:00");
}

TEST(Events, EachStopIsOne) {
  test::TempDir run;
  run.write("config.yaml", "");
  std::filesystem::create_directories(run / "log");
  run.write("log/rank-00000.log",
            "2026-11-23T20:00:00Z info trainer/0 step 12 stopped by the job's time limit\n"
            "2026-11-23T20:00:01Z debug trainer/0 step 12 all samples of step 12: a stopped by b, c started in d\n"
            "2026-11-23T21:00:00Z info trainer/0 step 14 stopped by the job's time limit\n");
  EXPECT_THAT(texts_of(read_run(run.path()).events),
              testing::ElementsAre("2026-11-23 20:00:00 info trainer/0 step 12 stopped by the job's time limit",
                                   "2026-11-23 21:00:00 info trainer/0 step 14 stopped by the job's time limit"));
}

// A start removes fault/, and what it has written down before may be there twice when it is killed between the two.
TEST(Events, FaultsOfEarlierStartsAreKept) {
  test::TempDir run;
  run.write("config.yaml", "");
  std::filesystem::create_directories(run / "fault");
  const auto fault = [](int rank, int reason_bytes, const char* time) {
    return fmt::format(R"({{"rank":{0},"host":"n{0}","phase":"training","step":9,"reason":"{1}","time":{2}}})", rank,
                       std::string(reason_bytes, 'x'), time);
  };
  run.write("starts.jsonl", "{\"before\":null}\n{\"before\":{\"faults\":[" + fault(7, 4, "1793491200.5") +
                                "]}}\n{\"before\":{\"faults\":[" + fault(3, 2000, "1793577600") + "]}}\n");
  run.write("fault/rank-00003.json", fault(3, 5000, "1793577600"));
  run.write("fault/rank-00004.json", fault(4, 2, "1793577601"));
  const auto texts = texts_of(read_run(run.path()).events);
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_EQ(texts[0], "2026-11-01 00:00:00 rank 7 on n7 left in training, step 9: xxxx");
  EXPECT_THAT(texts[1], testing::StartsWith("2026-11-02 00:00:00 rank 3 on n3 left in training, step 9: xxxx"));
  EXPECT_EQ(texts[2], "2026-11-02 00:00:01 rank 4 on n4 left in training, step 9: xx");
}

std::string letters(int number) {
  std::string word;
  for (; word.size() < 3; number /= 26) word += static_cast<char>('a' + number % 26);
  return word;
}

TEST(Events, OfManyRanksWithManyComplaintsTheNewestAreKept) {
  test::TempDir run;
  run.write("config.yaml", "");
  std::filesystem::create_directories(run / "log");
  for (int rank = 0; rank < 40; ++rank) {
    std::string log = fmt::format("2026-11-01T00:{:02}:00Z error trainer/{} all is lost on this rank\n", rank, rank);
    for (int i = 0; i < 100; ++i)
      log += fmt::format("2026-11-02T00:{:02}:00Z warning trainer/{} of {}\n", rank, rank, letters(100 * rank + i));
    run.write("log/" + rank_name(rank) + ".log", log);
  }
  const auto events = read_run(run.path()).events;
  ASSERT_EQ(events.size(), 61u);
  EXPECT_EQ(events[0].what, "error trainer/0 all is lost on this rank");
  EXPECT_EQ(events[0].count, 40);
  EXPECT_EQ(events[1].what, "warning trainer/39 of " + letters(3940));
  EXPECT_EQ(events[60].what, "warning trainer/39 of " + letters(3999));
}

// Whoever made the folder.
TEST(Events, LongLinesAndStrangeFaultsAreNoCrash) {
  test::TempDir run;
  run.write("config.yaml", "");
  for (const char* folder : {"log", "fault"}) std::filesystem::create_directories(run / folder);
  run.write("environment.json", R"({"ranks":[{"rank":0,"role":"producer"},{"rank":1,"role":"trainer"}]})");
  run.write("log/rank-00000.log", "2026-11-23T20:00:02Z error " + std::string(1'000'000, 'x') + "\n");
  run.write("log/rank-00001.log", "2026-11-23T20:00:03Z error x " + std::string(1'000'000, 'x') + "\n");
  run.write("fault/rank-00000.json", R"({"rank":0,"reason":"late","time":1e18})");
  run.write("fault/rank-00001.json", "{\"rank\":1,\"reason\":" + std::string(500'000, '[') + "}");
  const auto events = read_run(run.path()).events;
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].when, "");
  EXPECT_THAT(events[0].what, testing::HasSubstr("late"));
}

// However many warnings there are.
TEST(Events, StartsErrorsStepsBackAndFaultsAreKept) {
  test::TempDir run;
  run.write("config.yaml", "");
  for (const char* folder : {"log", "fault"}) std::filesystem::create_directories(run / folder);
  std::string log =
      "20:00:00 info trainer/0 started in 9 s\n2026-11-01T00:00:00Z info trainer/0 started in 1.5 s\n"
      "2026-11-01T00:00:01Z error trainer/0 step 3 all is lost\n"
      "2026-11-01T00:00:02Z warning trainer/0 step 3 going back to step 2\n";
  for (int kind = 0; kind < 1000; ++kind) log += "2026-11-02T00:00:01Z warning trainer/0 of " + letters(kind) + "\n";
  run.write("log/rank-00000.log", log + "2026-11-03T00:00:00Z info trainer/0 started in 1.6 s\n");
  run.write("fault/rank-00001.json",
            R"({"rank":1,"host":"n2","phase":"training","step":7,"reason":"gone","time":1793577600.5})");
  const auto texts = texts_of(read_run(run.path()).events);
  ASSERT_EQ(texts.size(), 66u);
  EXPECT_EQ(texts[0], "20:00:00 info trainer/0 started in 9 s");
  EXPECT_EQ(texts[1], "2026-11-01 00:00:00 info trainer/0 started in 1.5 s");
  EXPECT_EQ(texts[2], "2026-11-01 00:00:01 error trainer/0 step 3 all is lost");
  EXPECT_EQ(texts[3], "2026-11-01 00:00:02 warning trainer/0 step 3 going back to step 2");
  EXPECT_EQ(texts[4], "2026-11-02 00:00:00 rank 1 on n2 left in training, step 7: gone");
  EXPECT_EQ(texts[65], "2026-11-03 00:00:00 info trainer/0 started in 1.6 s");
}

}  // namespace
}  // namespace millrace
