#include "run/run_folder.h"

#include <gmock/gmock.h>

#include "core/temp_dir.h"
#include "error_of.h"
#include "millrace/core/files.h"
#include "millrace/core/run_files.h"
#include "run/finish.h"
#include "train/vae_export.h"

// What stands in a run's folder at its start and its end.
namespace millrace {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(RunFolder, ThatCannotBeMadeIsToldWithItsCure) {
  const test::TempDir folder;
  const auto in_a_file = folder.write("file", "") / "run";
  const auto error = test::error_of([&] { claim_run_folder(Group(), in_a_file); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_THAT(error.what(), testing::StartsWith("run.dir: cannot make " + in_a_file.string()));
  EXPECT_EQ(error.hint(), "a part of the path is a file, not a directory");
}

// Where training went back to a checkpoint that has the duration, the VAE of a later one lies there still.
TEST(VaeExport, IsTheEndOfItsOwnCheckpointAlone) {
  const test::TempDir folder;
  const auto run = folder / "run";
  const auto older = checkpoints_in(run) / step_name(18), newer = checkpoints_in(run) / step_name(24);
  for (const auto& path : {older, newer, export_of(run), folder / "other/checkpoints" / step_name(18)})
    fs::create_directories(path);
  write_file_atomically(run / "pipeline.json", R"({"checkpoint": "before/it/was/moved/step-00000024"})");
  EXPECT_FALSE(holds_the_end(run, newer)) << "it was killed";
  write_file_atomically(run / run_file::done, "{}");
  EXPECT_TRUE(holds_the_end(run, newer));
  EXPECT_FALSE(holds_the_end(run, older));
  EXPECT_TRUE(holds_the_end(run, folder / "other/checkpoints" / step_name(18))) << "nothing of it goes there";
}

// As of a start that was told to stop before its first step.
TEST(Footer, HasNoFiguresOfAStartThatTookNoStep) {
  const test::TempDir run;
  const auto lease = RunLease::acquire(Group(), run.path());
  LoopResult result;
  result.state.step = 18;
  result.reason = "SIGUSR1";
  const auto said = [&] {
    testing::internal::CaptureStdout();
    finish_run(Group(), run.path(), lease, result, "auto", {});
    return testing::internal::GetCapturedStdout();
  };
  EXPECT_THAT(said(), Not(HasSubstr("img/s")));
  result.totals.step_ms = 10;
  EXPECT_THAT(said(), HasSubstr("img/s"));
}

}  // namespace
}  // namespace millrace
