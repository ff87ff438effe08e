#include "millrace/report/run_record.h"

#include <gmock/gmock.h>

#include <cmath>

#include "core/temp_dir.h"
#include "millrace/core/error.h"

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

TEST(Settings, AreFlattened) {
  const auto settings =
      flatten_settings("run:\n  dir: /a: b\n  seed: 420\ndata:\n  train:\n    path: [a, b]\nduration: 5 steps\n");
  EXPECT_EQ(settings,
            (std::map<std::string, std::string>{
                {"run.dir", "/a: b"}, {"run.seed", "420"}, {"data.train.path", "[a, b]"}, {"duration", "5 steps"}}));
}

}  // namespace
}  // namespace millrace
