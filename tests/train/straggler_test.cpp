#include "straggler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/temp_dir.h"
#include "longest.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"

namespace millrace {
namespace {

TEST(Slowest, IsComparedWithTheMedian) {
  const auto slowest = find_slowest(std::vector{1.0, 1.1, 3.3, 1.2, 0.9});
  EXPECT_EQ(slowest.place, 2u);
  EXPECT_DOUBLE_EQ(slowest.ratio, 3);
  EXPECT_DOUBLE_EQ(find_slowest(std::vector{2.0, 1.0}).ratio, 2);  // with the other one, where there are two
}

TEST(Slowest, OneAloneOrAllEvenIsOne) {
  EXPECT_EQ(find_slowest(std::vector{5.0}).ratio, 1);
  EXPECT_EQ(find_slowest(std::vector{5.0, 5.0, 5.0}).ratio, 1);
  EXPECT_EQ(find_slowest(std::vector<double>{}).ratio, 1);
  EXPECT_EQ(find_slowest(std::vector{0.0, 0.0}).ratio, 1);
}

TEST(Slowest, WhoIsUnknownIsLeftOut) {
  const auto slowest = find_slowest(std::vector<double>{NAN, 1.0, INFINITY, 1.5});
  EXPECT_EQ(slowest.place, 3u);
  EXPECT_DOUBLE_EQ(slowest.ratio, 1.5);
}

TEST(Longest, ForgetsWhatWasLongAgo) {
  Longest longest(0.8);
  EXPECT_EQ(longest.seconds(), 0);
  longest.add(600);  // the disk was slow once
  longest.add(20);
  EXPECT_DOUBLE_EQ(longest.seconds(), 480);
  for (int save = 0; save < 20; ++save) longest.add(20);
  EXPECT_DOUBLE_EQ(longest.seconds(), 20);
  longest.raise(15);
  EXPECT_DOUBLE_EQ(longest.seconds(), 20);
  longest.raise(25);
  EXPECT_DOUBLE_EQ(longest.seconds(), 25);
}

TEST(StragglerWatch, SpeaksOnceAfterFiftySlowSteps) {
  StragglerWatch watch;
  const std::vector slow{1.0, 1.5, 1.0};
  EXPECT_TRUE(watch.look(slow, 49).empty());
  const auto news = watch.look(slow, 1);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].place, 1u);
  EXPECT_DOUBLE_EQ(news[0].ratio, 1.5);
  EXPECT_TRUE(news[0].is_slow);
  EXPECT_EQ(news[0].steps, 50);
  EXPECT_TRUE(watch.look(slow, 500).empty());
}

TEST(StragglerWatch, SpeaksAgainAfterARecovery) {
  StragglerWatch watch;
  const std::vector slow{1.0, 1.5, 1.0}, even{1.0, 1.3, 1.0};
  EXPECT_TRUE(watch.look(slow, 49).empty());
  EXPECT_EQ(watch.look(slow, 1).size(), 1u);
  const auto recovered = watch.look(even, 1);
  ASSERT_EQ(recovered.size(), 1u);
  EXPECT_FALSE(recovered[0].is_slow);
  EXPECT_TRUE(watch.look(even, 1).empty());
  EXPECT_TRUE(watch.look(slow, 49).empty());
  EXPECT_EQ(watch.look(slow, 49).size(), 1u);
}

// 49 usual steps and one that takes twenty times as long.
TEST(StragglerWatch, OneSlowStepAmongManyIsNoStraggler) {
  StragglerWatch watch;
  const std::vector<double> hiccup{1.0, (49 + 20) / 50.0, 1.0}, even{1.0, 1.0, 1.0};
  EXPECT_GT(hiccup[1], StragglerWatch::slow_ratio);
  EXPECT_TRUE(watch.look(hiccup, 50).empty());
  EXPECT_TRUE(watch.look(even, 50).empty());
  EXPECT_TRUE(watch.look(hiccup, 50).empty());
  const auto news = watch.look(hiccup, 50);
  ASSERT_EQ(news.size(), 1u);
  EXPECT_EQ(news[0].steps, 100);
}

TEST(StragglerWatch, AShortRecoveryBeginsTheCountAnew) {
  StragglerWatch watch;
  EXPECT_TRUE(watch.look(std::vector{1.0, 1.5}, 49).empty());
  EXPECT_TRUE(watch.look(std::vector{1.0, 1.0}, 1).empty());
  EXPECT_TRUE(watch.look(std::vector{1.0, 1.5}, 49).empty());
}

TEST(Straggler, TheWarningTellsOfItsGpuWhereThatIsKnown) {
  const test::TempDir folder;
  log::init({.console = false, .file = (folder / "log").string()});
  const std::vector<RankOnHost> ranks{{2, "n1"}, {5, "n2"}};
  const std::vector<StragglerWatch::News> news{{1, 1.5, true, 50}};
  warn_of_stragglers("trains", ranks, news, std::vector<GpuState>{{1980, 60, 0}, {1305, 84, 0x40}});
  warn_of_stragglers("encodes", ranks, news);
  log::init({});
  const auto text = read_file(folder / "log"), same = std::string("1.50 times as long as the median for the same work");
  EXPECT_NE(
      text.find("rank 5 on n2 trains " + same + ", for 50 steps; its GPU: 1305 MHz, 84 C, throttle reasons 0x40\n"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("rank 5 on n2 encodes " + same + ", for 50 steps\n"), std::string::npos) << text;
}

TEST(StragglerWatch, WhoIsUnknownForAWhileKeepsItsCount) {
  StragglerWatch watch;
  EXPECT_TRUE(watch.look(std::vector{1.0, 1.5, 1.0}, 49).empty());
  EXPECT_TRUE(watch.look(std::vector{1.0, std::nan(""), 1.0}, 10).empty());
  EXPECT_EQ(watch.look(std::vector{1.0, 1.5, 1.0}, 1).size(), 1u);
}

}  // namespace
}  // namespace millrace
