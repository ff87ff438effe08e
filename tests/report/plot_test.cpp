#include "plot.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <regex>

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Escape, LeavesNoMarkup) {
  EXPECT_EQ(escape("<script>alert(\"x\") & 'y'</script>"),
            "&lt;script&gt;alert(&quot;x&quot;) &amp; &#39;y&#39;&lt;/script&gt;");
  EXPECT_EQ(escape("Müller 猫 😀"), "Müller 猫 😀");
}

// Control characters have no place in XML; overlong forms, surrogates and what lies beyond U+10FFFF none in UTF-8.
TEST(Escape, ReplacesWhatIsNoText) {
  EXPECT_EQ(escape(std::string_view("a\0b\x1b\x7f\n", 6)), "a\uFFFDb\uFFFD\uFFFD\n");
  EXPECT_EQ(escape("\xff-\xc3"), "\uFFFD-\uFFFD");
  EXPECT_EQ(escape("\xe7\x8c-"), "\uFFFD-");  // a character that was cut short
  EXPECT_EQ(escape("\xc0\xaf"), "\uFFFD\uFFFD");
  EXPECT_EQ(escape("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(escape("\xf4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
}

TEST(ShortNumber, IsForPeople) {
  EXPECT_EQ(short_number(0.123456), "0.1235");
  EXPECT_EQ(short_number(1234.5), "1234");
  EXPECT_EQ(short_number(0.000034), "3.4e-05");
  EXPECT_EQ(short_number(1e30), "1e+30");
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(std::nan("")), "–");
}

Series series_of(std::vector<double> values) {
  Series series{{}, std::move(values)};
  for (std::size_t i = 0; i < series.values.size(); ++i) series.steps.push_back(static_cast<std::int64_t>(i) + 1);
  return series;
}

TEST(Plot, HasWordsForNothing) {
  EXPECT_THAT(render_plot({"loss", "", {}}), HasSubstr("no numbers"));
  EXPECT_THAT(render_plot({"loss", "", {{"a", series_of({std::nan("")})}}}), HasSubstr("no numbers"));
}

TEST(Plot, DrawsOneValueAndConstants) {
  for (const auto& values : {std::vector<double>{0.5}, std::vector<double>{2, 2, 2}, std::vector<double>{0, 0}}) {
    const auto svg = render_plot({"loss", "", {{"a", series_of(values)}}});
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
    EXPECT_THAT(svg, HasSubstr("class=\"curve"));
  }
}

TEST(Plot, BreaksWhereNumbersAreMissing) {
  const auto svg = render_plot({"loss", "", {{"a", series_of({1, 2, std::nan(""), 3, 4})}}});
  const auto path = svg.substr(svg.find(" d=\"M", svg.find("curve")));
  EXPECT_EQ(std::count(path.begin(), path.begin() + static_cast<std::ptrdiff_t>(path.find("/>")), 'M'), 2);
}

// A million points become a few thousand; the one that stands out is still there, at the frame's edge.
// Also where rounding makes a distance of just a line a little shorter.
TEST(Plot, NamesOfCurvesDoNotCoverEachOther) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> last(0.9, 1.1);
  for (int plot = 0; plot < 500; ++plot) {
    Plot of_many{"loss", "", {}};
    const int curves = 2 + plot % 5;
    for (int i = 0; i < curves; ++i)
      of_many.curves.push_back({fmt::format("run {}", i), series_of({0, 2, last(random)})});
    const auto svg = render_plot(of_many);
    std::vector<double> heights;
    const std::regex name("class=\"name[^>]* y=\"([0-9.]+)\"");
    for (std::sregex_iterator match(svg.begin(), svg.end(), name), end; match != end; ++match)
      heights.push_back(std::stod((*match)[1]));
    ASSERT_EQ(std::ssize(heights), curves);
    std::ranges::sort(heights);
    for (std::size_t i = 1; i < heights.size(); ++i) EXPECT_GE(heights[i] - heights[i - 1], 14.8);
  }
}

TEST(Plot, KeepsSpikesOfLongCurves) {
  std::vector<double> values(1'000'000, 1.0);
  for (std::size_t i = 0; i < values.size(); i += 2) values[i] = 1.1;
  values[123'456] = 50;
  const auto svg = render_plot({"loss", "", {{"a", series_of(values)}}});
  EXPECT_LT(svg.size(), 60'000u);
  EXPECT_TRUE(std::regex_search(svg, std::regex("L[0-9.]+ [0-9]\\.[0-9]L")));  // above the frame, which begins at 12
}

}  // namespace
}  // namespace millrace
