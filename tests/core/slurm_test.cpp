#include "millrace/core/slurm.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

namespace millrace::slurm {
namespace {

// At 1000, by what slurm/requeue.sh and Slurm itself say; null: nothing.
JobEnd end_said_by(const char* script, const char* scheduler) {
  const std::pair<const char*, const char*> said[] = {{"MILLRACE_END_TIME", script}, {"SLURM_JOB_END_TIME", scheduler}};
  for (const auto& [name, value] : said) {
    if (value)
      ::setenv(name, value, 1);
    else
      ::unsetenv(name);
  }
  const auto end = job_end(1000);
  for (const auto& [name, value] : said) ::unsetenv(name);
  return end;
}

TEST(JobEnd, IsTheFirstThatLiesAhead) {
  EXPECT_EQ(end_said_by("1500", "1600").at, 1500);
  EXPECT_EQ(end_said_by(nullptr, "1600").at, 1600);
  const auto after_another = end_said_by("900", "1600");
  EXPECT_EQ(after_another.at, 1600);
  EXPECT_STREQ(after_another.variable, "SLURM_JOB_END_TIME");
}

TEST(JobEnd, WhereAllArePastComesWithTheNameOfOne) {
  const auto past = end_said_by("900", nullptr);
  EXPECT_EQ(past.at, 900);
  EXPECT_STREQ(past.variable, "MILLRACE_END_TIME");
}

TEST(JobEnd, IsNeverWhereNobodySaysIt) {
  constexpr double never = std::numeric_limits<double>::infinity();
  EXPECT_EQ(end_said_by(nullptr, nullptr).at, never);
  EXPECT_EQ(end_said_by("", "Unknown").at, never);
}

}  // namespace
}  // namespace millrace::slurm
