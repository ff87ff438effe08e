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

TEST_F(LateDrops, AreToldOnceWithTheFieldThatIsToBlame) {
  count_mixed(2000, 1);
  count(9000, renamed);  // of 10,000 rows no more than 90 %
  count(1000, wide);
  count(1000, renamed);
  EXPECT_EQ(warnings(), 0);
  count(9000, renamed);  // the next 10,000
  EXPECT_EQ(warnings(), 0);
  count(100, renamed);
  EXPECT_EQ(warnings(), 1);
  // 2,000 and 9,000 of 30,000 rows.
  EXPECT_THAT(read_file(folder.path("log")),
              testing::HasSubstr("data.train.filters have dropped 100 % of 10000 rows, and 37 % of those before: "
                                 "mostly width '>=512' (saw missing)"));
  count(30'000, renamed);
  count_mixed(2000, 1);
  count(30'000, renamed);
  EXPECT_EQ(warnings(), 1);
}

TEST_F(LateDrops, AreToldOfFiltersThatUsuallyDropHalf) {
  count_mixed(2000, 5);
  count(10'100, renamed);
  EXPECT_EQ(warnings(), 1);
}

TEST_F(LateDrops, OfFiltersThatHaveAlwaysDroppedManyAreNotTold) {
  count_mixed(2000, 9);
  count(20'100, narrow);
  EXPECT_EQ(warnings(), 0);
}

// Data in an order of their own: nothing tells yet what is usual.
TEST_F(LateDrops, OfTheVeryFirstRowsAreNotTold) {
  count(900, wide);
  count(9200, narrow);
  EXPECT_EQ(warnings(), 0);
}

TEST_F(LateDrops, WhereNothingWasEverKeptAreNotToldTwice) {
  count(40'000, renamed);
  EXPECT_EQ(warnings(), 0);
  EXPECT_THAT(read_file(folder.path("log")), testing::HasSubstr("have kept none of the first 1000 rows"));
}

}  // namespace
}  // namespace millrace
