#include "launch/run_watch.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/temp_dir.h"
#include "millrace/comm/fault.h"
#include "millrace/core/files.h"
#include "millrace/train/state_file.h"

namespace millrace {
namespace {

// Which of several hosts hangs is not known, and a file of its own would take the named one out of the next start.
TEST(RunWatch, BlamesAHostThatHangsAlone) {
  for (const bool is_one_of_many : {true, false}) {
    const test::TempDir run;
    fault::report_to({run.path(), 3, "n2", ""});  // as the first: a process writes one such file
    fault::forget();
    StateFile(run.path()).write(RunStatus::running, {.step = 3, .samples = 24}, std::nullopt);
    const Suspect suspect{3, "n2", "training", 17, "rank 3 on n2 hangs", is_one_of_many};
    tell_folder(run.path(), suspect, "trainer", Error(Exit::suspect_node, suspect.what));
    const auto file = run / "fault/rank-00003.json";
    EXPECT_EQ(std::filesystem::exists(file), !is_one_of_many);
    if (!is_one_of_many) {
      const auto written = nlohmann::json::parse(read_file(file));
      EXPECT_EQ(written["step"], 17) << "its own, not the writer's";
      EXPECT_EQ(written["role"], "trainer");
    }
    EXPECT_EQ(nlohmann::json::parse(read_file(run / "STATE"))["exit"], 76);
  }
}

}  // namespace
}  // namespace millrace
