#include "millrace/core/run_status.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

// The batch scripts read them.
TEST(RunStatus, HasTheWordsOfTheStateFile) {
  for (const char* word : {"running", "stopping", "requeue", "done", "failed"}) {
    ASSERT_TRUE(try_parse_run_status(word)) << word;
    EXPECT_STREQ(to_string(*try_parse_run_status(word)), word);
  }
  EXPECT_FALSE(try_parse_run_status("Done"));
  EXPECT_FALSE(try_parse_run_status(""));
  EXPECT_TRUE(is_under_way(RunStatus::stopping));
  EXPECT_FALSE(is_under_way(RunStatus::requeue));
}

}  // namespace
}  // namespace millrace
