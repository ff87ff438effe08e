#include "millrace/core/text.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>

#include "millrace/core/json_text.h"

namespace millrace {
namespace {

using namespace std::string_view_literals;

TEST(Text, TrimTakesAsciiSpaceOffBothEnds) {
  EXPECT_EQ(trim(" \t\r\n\v\fa b\n "), "a b");
  EXPECT_EQ(trim("a"), "a");
  EXPECT_EQ(trim("\u00A0a\u00A0"), "\u00A0a\u00A0");
  EXPECT_EQ(trim("\0 "sv), "\0"sv);
  EXPECT_EQ(trim(" \n"), "");
  EXPECT_EQ(trim(""), "");
}

TEST(Text, LowerChangesAsciiLettersOnly) {
  EXPECT_EQ(lower("@AZ[`az{ 09 \u00C9\u0130"), "@az[`az{ 09 \u00C9\u0130");
}

TEST(Text, TakeUntilTakesTheMarkToo) {
  std::string_view text = "a:b::c";
  for (const char* part : {"a", "b", "", "c", ""}) EXPECT_EQ(take_until(text, ':'), part);
  EXPECT_EQ(text, "");
}

TEST(Text, AWholeNumberIsParsedWhereItIsAllOfTheText) {
  EXPECT_EQ(parse_number<int>("0"), 0);
  EXPECT_EQ(parse_number<int>("-007"), -7);
  EXPECT_EQ(parse_number<std::int64_t>("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_number<std::int64_t>("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(parse_number<std::uint64_t>("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(parse_number<int>(std::string_view("123").substr(0, 2)), 12);
  for (const auto text : {""sv, " 5"sv, "5 "sv, "5\n"sv, "5\0"sv, "+5"sv, "-"sv, "--5"sv, "- 5"sv, "5x"sv, "x"sv,
                          "5.0"sv, "5e1"sv, "0x5"sv, "1_000"sv, "2147483648"sv, "-2147483649"sv})
    EXPECT_FALSE(parse_number<int>(text)) << text;
  EXPECT_FALSE(parse_number<int>(std::string_view()));
  for (const char* text : {"-1", "-0", "18446744073709551616"}) EXPECT_FALSE(parse_number<std::uint64_t>(text)) << text;
}

TEST(Text, AWholeNumberMayHaveAnotherBase) {
  EXPECT_EQ(parse_number<int>("fF", 16), 255);
  EXPECT_EQ(parse_number<std::uint64_t>("ffffffffffffffff", 16), UINT64_MAX);
  EXPECT_EQ(parse_number<unsigned>("377", 8), 255u);
  for (const char* text : {"", "0xff", "fg", "-ff", "10000000000000000"})
    EXPECT_FALSE(parse_number<std::uint64_t>(text, 16)) << text;
}

TEST(Text, ANumberWithAFractionIsParsedWhereItIsAllOfTheText) {
  EXPECT_EQ(parse_number<double>("5"), 5.0);
  EXPECT_EQ(parse_number<double>("-.25"), -0.25);
  EXPECT_EQ(parse_number<float>("1e-2"), 0.01f);
  EXPECT_EQ(parse_number<double>("inf"), HUGE_VAL);
  EXPECT_TRUE(std::isnan(parse_number<double>("nan").value()));
  for (const char* text : {"", " 5", "5 ", "+5", "-", ".", "5,0", "5.0.0", "1e", "0x5", "1e999", "-1e999"})
    EXPECT_FALSE(parse_number<double>(text)) << text;
  EXPECT_FALSE(parse_number<float>("1e99"));
}

// What Python answers to bytes.decode("utf-8", errors="replace"); the first rows are those of Unicode's table 3-8 and
// of the text around it.
TEST(Text, IllFormedUtf8IsReplacedAsByPython) {
  constexpr std::array<std::array<std::string_view, 2>, 23> cases = {{
      {"", ""},
      {"caf\u00E9 \u65E5 \U0001F600 \U0010FFFF", "caf\u00E9 \u65E5 \U0001F600 \U0010FFFF"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"sv, "\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"sv, "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"sv, "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"sv, "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB"},
      {"\x80", "\uFFFD"},
      {"\xC3", "\uFFFD"},
      {"\xC3(", "\uFFFD("},
      {"\xC1\xBF", "\uFFFD\uFFFD"},
      {"\xC2\x80", "\u0080"},
      {"\xE0\x9F\xBF", "\uFFFD\uFFFD\uFFFD"},
      {"\xE0\xA0\x80", "\u0800"},
      {"\xE0\xA0", "\uFFFD"},
      {"\xED\x9F\xBF", "\uD7FF"},
      {"\xEF\xBF\xBF", "\uFFFF"},
      {"\xF0\x8F\xBF\xBF", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xF0\x90\x80\x80", "\U00010000"},
      {"\xF0\x9F\x98", "\uFFFD"},
      {"\xF0\x9F\x98x", "\uFFFDx"},
      {"\xF0\x9F\xF0\x9F\x98\x80", "\uFFFD\U0001F600"},
      {"\xF5\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xEF\xBB\xBF\0\xFE"sv, "\uFEFF\0\uFFFD"sv},
  }};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(valid_utf8(bytes), text);
}

TEST(Text, JsonOfBytesThatAreNoUtf8IsWritten) {
  EXPECT_EQ(dump_any(nlohmann::json{{"name", "caf\xE9"}}), "{\"name\":\"caf\uFFFD\"}");
  EXPECT_EQ(dump_any(nlohmann::ordered_json{{"b", 1}, {"a", 2}}, 1), "{\n \"b\": 1,\n \"a\": 2\n}");
}

}  // namespace
}  // namespace millrace
