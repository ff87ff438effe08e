#include "millrace/loader/filter_watch.h"

#include <gmock/gmock.h>

#include <map>
#include <string>

#include "dataset/temp_archives.h"
#include "millrace/core/log.h"

namespace millrace {
namespace {

using test::TempFolder;

constexpr const char* wide = R"({"width": 600, "lang": "en"})";
constexpr const char* narrow = R"({"width": 100, "lang": "en"})";
constexpr const char* renamed = R"({"original_width": 600, "lang": "en"})";

// What a watch over rows with these metadata has logged; of ten rows `dropped` are narrow.
class LateDrops : public testing::Test {
 protected:
  LateDrops() { log::init({.console = false, .file = folder.path("log")}); }
  ~LateDrops() override { log::init({}); }

  void count(int rows, const char* json) {
    for (int i = 0; i < rows; ++i) watch.count(filter.judge(json), json, row++);
  }
  void count_mixed(int tens, int dropped) {
    for (int i = 0; i < tens; ++i) {
      count(dropped, narrow);
      count(10 - dropped, wide);
    }
  }
  int warnings() const {
    log::flush();
    const std::string text = read_file(folder.path("log")), words = "filters have dropped";
    int count = 0;
    for (auto at = text.find(words); at != text.npos; at = text.find(words, at + 1)) ++count;
    return count;
  }

  const TempFolder folder;
  const Filter filter{std::map<std::string, std::string>{{"lang", "en"}, {"width", ">=512"}}};
  FilterWatch watch{filter};
  std::uint64_t row = 0;
};

// Of 8,800 rows that are dropped and 1,200 of which a tenth is, less than 90 % are; of 9,000 and 1,000, more.
TEST_F(LateDrops, AreToldOnceWithTheFieldThatIsToBlame) {
  count_mixed(2000, 1);
  count(8800, renamed);
  EXPECT_EQ(warnings(), 0);
  count(200, renamed);
  EXPECT_EQ(warnings(), 1);
  EXPECT_THAT(read_file(folder.path("log")),
              testing::HasSubstr("data.train.filters have dropped 90 % of the last 10000 rows, and 10 % of those "
                                 "before: mostly width '>=512' (saw missing)"));
  count(30'000, renamed);
  count_mixed(2000, 1);
  count(30'000, renamed);
  EXPECT_EQ(warnings(), 1);
}

TEST_F(LateDrops, AreToldOfFiltersThatUsuallyDropHalf) {
  count_mixed(2000, 5);
  count(10'000, renamed);
  EXPECT_EQ(warnings(), 1);
}

TEST_F(LateDrops, OfFiltersThatHaveAlwaysDroppedManyAreNotTold) {
  count_mixed(2000, 9);
  count(20'000, narrow);
  EXPECT_EQ(warnings(), 0);
}

// Data in an order of their own: the rows before them are too few to tell what is usual.
TEST_F(LateDrops, BehindTheVeryFirstRowsAreNotTold) {
  count(900, wide);
  count(10'000, narrow);
  EXPECT_EQ(warnings(), 0);
}

TEST_F(LateDrops, WhereNothingWasEverKeptAreNotToldTwice) {
  count(40'000, renamed);
  EXPECT_EQ(warnings(), 0);
  EXPECT_THAT(read_file(folder.path("log")), testing::HasSubstr("have kept none of the first 1000 rows"));
}

}  // namespace
}  // namespace millrace
