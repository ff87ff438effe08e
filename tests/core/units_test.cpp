#include <gtest/gtest.h>

#include "millrace/core/error.h"
#include "millrace/core/units.h"

namespace millrace {
namespace {

TEST(Duration, ReadsNumberPrefixAndUnit) {
  using Unit = Duration::Unit;
  const std::pair<const char*, Duration> cases[] = {{"550000 steps", {550000, Unit::steps}},
                                                    {"1000", {1000, Unit::steps}},
                                                    {"1 step", {1, Unit::steps}},
                                                    {"550_000", {550000, Unit::steps}},
                                                    {"1_100.5k samples", {1100500, Unit::samples}},
                                                    {"550k steps", {550000, Unit::steps}},
                                                    {"1e6 steps", {1e6, Unit::steps}},
                                                    {"1.1G samples", {1.1e9, Unit::samples}},
                                                    {"2M", {2e6, Unit::steps}},
                                                    {"30 s", {30, Unit::seconds}},
                                                    {"20 min", {1200, Unit::seconds}},
                                                    {"20min", {1200, Unit::seconds}},
                                                    {"4 h", {14400, Unit::seconds}},
                                                    {"2 d", {172800, Unit::seconds}},
                                                    {" 0 steps ", {0, Unit::steps}},
                                                    {"16.1k steps", {16100, Unit::steps}},
                                                    {"8.3M samples", {8.3e6, Unit::samples}},
                                                    {"0.000123M steps", {123, Unit::steps}},
                                                    {"1.5 hours", {5400, Unit::seconds}}};
  for (const auto& [text, expected] : cases) EXPECT_EQ(parse_duration(text), expected) << text;
}

TEST(Duration, RefusesWhatIsNone) {
  for (const char* text : {"", "steps", "-1 steps", "10 parsecs", "1e999", "nan steps", "inf", "1.5.2 s", "10 m",
                           "1 k k", "5 ste_ps", "_"}) {
    try {
      parse_duration(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::usage);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos);
    }
  }
}

TEST(Duration, WritesWhatItReads) {
  for (const char* text :
       {"550000 steps", "1100000000 samples", "30 s", "20 min", "4 h", "2 d", "90 s", "0.5 s", "0 steps"}) {
    EXPECT_EQ(to_string(parse_duration(text)), text);
  }
}

TEST(Duration, HasStepsUnlessItIsATime) {
  EXPECT_EQ(to_steps(Duration::steps(12), 8), 12);
  EXPECT_EQ(to_steps({24, Duration::Unit::samples}, 8), 3);
  EXPECT_EQ(to_steps({25, Duration::Unit::samples}, 8), 3.125);
  EXPECT_EQ(to_steps(Duration::seconds(60), 8), std::nullopt);
}

TEST(Bytes, ReadsPowersOf1000And1024) {
  EXPECT_EQ(parse_bytes("512"), 512u);
  EXPECT_EQ(parse_bytes("10 kB"), 10'000u);
  EXPECT_EQ(parse_bytes("32 MiB"), 32u << 20);
  EXPECT_EQ(parse_bytes("32MiB"), 32u << 20);
  EXPECT_EQ(parse_bytes("1_024 MiB"), 1u << 30);
  EXPECT_EQ(parse_bytes("1.5 GB"), 1'500'000'000u);
  for (const char* text : {"", "MiB", "-1", "1 mib", "1e30 TB", "nan"}) EXPECT_THROW(parse_bytes(text), Error) << text;
}

TEST(Format, IsShortAndReadable) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(33'030'144), "31.5 MiB");
  EXPECT_EQ(format_bytes((1ull << 20) - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(100ull << 30), "100 GiB");
  EXPECT_EQ(format_count(2'460'000), "2.46M");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(999'600), "1.00M");
  EXPECT_EQ(format_count(24'600), "24.6k");
  EXPECT_EQ(format_count(-246'000), "-246k");
  EXPECT_EQ(format_time(2470), "0:41:10");
  EXPECT_EQ(format_time(3 * 86400 + 4 * 3600 + 600), "3d 04:10");
  EXPECT_EQ(format_time(59.6), "0:01:00");
}

}  // namespace
}  // namespace millrace
