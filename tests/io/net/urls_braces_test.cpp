#include "io/support.h"
#include "millrace/io/net/urls.h"

namespace millrace::test {
namespace {

TEST(Braces, ExpandsAsTheReferenceDoes) {
  const auto patterns = golden_json("braces.json")["expand"];
  for (const auto& [pattern, expected] : patterns.items()) {
    EXPECT_EQ(expand_braces(pattern), expected.get<std::vector<std::string>>()) << pattern;
  }
}

TEST(Braces, RefusesUnbalancedOnes) {
  const auto patterns = golden_json("braces.json")["unbalanced"];
  for (const auto& pattern : patterns) {
    const Error error = error_of([&] { expand_braces(pattern.get<std::string>()); });
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find("unbalanced"), std::string::npos) << pattern;
  }
}

TEST(Braces, RefusesAnExplosion) {
  for (const char* pattern :
       {"{0..99999999999}", "{1..9999}{1..9999}", "{-9000000000000000000..9}", "{1..99999999999999999999}"}) {
    EXPECT_EQ(error_of([&] { expand_braces(pattern); }).exit(), Exit::usage) << pattern;
  }
}

TEST(Braces, CountsAMillionArchivesQuickly) {
  const auto names = expand_braces("s3://bucket/{0000000..0999999}.tar");
  EXPECT_EQ(names.size(), 1'000'000u);
  EXPECT_EQ(names.back(), "s3://bucket/0999999.tar");
}

}  // namespace
}  // namespace millrace::test
