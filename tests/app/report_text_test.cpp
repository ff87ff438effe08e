#include "inspect/report_text.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

using nlohmann::json;

TEST(ReportText, ValuesThenTablesThenProblems) {
  const json report = {
      {"kind", "run"},
      {"step", 12345},
      {"done", false},
      {"checkpoints",
       {{{"step", 12345}, {"path", "run/a"}, {"bytes", 3 << 20}, {"valid", true}, {"problems", json::array()}},
        {{"step", 8}, {"path", "run/longer"}, {"valid", false}}}},
      {"problems", {"run/longer: damaged"}}};
  EXPECT_EQ(report_text("run", report),
            "run: run\n"
            "  done           no\n"
            "  step           12,345\n"
            "  checkpoints\n"
            "    path          step     size  valid\n"
            "    run/a       12,345  3.0 MiB  yes\n"
            "    run/longer       8           no\n"
            "  PROBLEM        run/longer: damaged\n");
}

TEST(ReportText, MapsOfValuesAndOfRows) {
  const json report = {
      {"kind", "archive"},
      {"bytes", 1023},
      {"shape", {4, 8, 8}},
      {"rejected", json::object()},
      {"fields", {{"jpg", 200}, {"text", 1}}},
      {"components", {{"unet", {{"class", "U"}, {"parameters", 999}}}, {"tokenizer", {{"class", "T"}}}}}};
  EXPECT_EQ(report_text("a.tar", report),
            "a.tar: archive\n"
            "  size           1023 B\n"
            "  shape          4 x 8 x 8\n"
            "  components\n"
            "               class  parameters\n"
            "    tokenizer  T\n"
            "    unet       U             999\n"
            "  fields\n"
            "    jpg   200\n"
            "    text  1\n");
}

TEST(ReportText, HistogramsAndLengths) {
  const json ranges = {{{"from", 0}, {"to", 63}, {"images", 1}}, {{"from", 64}, {"to", 127}, {"images", 80}}};
  const json report = {{"kind", "archive"}, {"images", {{"short_side", ranges}, {"largest", {640, 480}}}}};
  EXPECT_EQ(report_text("a.tar", report),
            "a.tar: archive\n"
            "  images\n"
            "    largest     640 x 480\n"
            "    short side\n"
            "          0 to 63           1 #\n"
            "         64 to 127         80 ########################################\n");
}

// Names and captions come from strangers.
TEST(ReportText, ControlCharactersAreShown) {
  const json report = {{"kind", "archive"}, {"fields", {{"j\x1b[31mpg", 1}}}, {"problems", {"row \x07: bad"}}};
  const auto text = report_text("a\x1b.tar", report);
  EXPECT_EQ(text.find('\x1b'), text.npos) << text;
  EXPECT_EQ(text.find('\x07'), text.npos) << text;
}

}  // namespace
}  // namespace millrace
