#include "millrace/core/error.h"

#include <gtest/gtest.h>

#include <string>

#include "error_of.h"

namespace millrace {
namespace {

TEST(Error, SaysWhichKeyItIsAbout) {
  const Error error = about_key("samples.prompts", Error(Exit::io, "a.txt holds none", "give it a line"));
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_STREQ(error.what(), "samples.prompts: a.txt holds none");
  EXPECT_EQ(error.hint(), "give it a line");
}

TEST(Error, OfAnActionIsAboutItsKey) {
  const Error error = test::error_of([] { with_key("run.dir", [] { fail(Exit::usage, "{} is a file", "a"); }); });
  EXPECT_EQ(error.exit(), Exit::usage);
  EXPECT_STREQ(error.what(), "run.dir: a is a file");
  EXPECT_EQ(error.hint(), "");
  EXPECT_EQ(with_key("run.dir", [] { return std::string("b"); }), "b");
}

}  // namespace
}  // namespace millrace
