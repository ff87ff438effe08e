#include "millrace/data/filter.h"

#include <gmock/gmock.h>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/data/filter_watch.h"
#include "temp_archives.h"

namespace millrace {
namespace {

using Verdict = Filter::Verdict;
using Expressions = std::map<std::string, std::string>;

Verdict judge(const std::string& field, const std::string& expression, const std::string& json) {
  return Filter(Expressions{{field, expression}}).judge(json);
}

TEST(Filter, Terms) {
  const struct {
    const char *expression, *json;
    Verdict verdict;
  } cases[] = {
      {"<=0.5", R"({"f": 0.5})", Verdict::keep},
      {"<0.5", R"({"f": 0.5})", Verdict::drop},
      {"<= 1e-1", R"({"f": 0.1})", Verdict::keep},
      {">=512 and <2048", R"({"f": 512})", Verdict::keep},
      {">=512 and <2048", R"({"f": 2048})", Verdict::drop},
      {"-1..1", R"({"f": -1})", Verdict::keep},
      {"0.25..0.75", R"({"f": 0.76})", Verdict::drop},
      {"a..c", R"({"f": "bb"})", Verdict::keep},
      {"success", R"({"f": "success"})", Verdict::keep},
      {"!= UNLIKELY", R"({"f": "NSFW"})", Verdict::keep},
      {"!= UNLIKELY", R"({"f": "UNLIKELY"})", Verdict::drop},
      {"!= UNLIKELY", R"({})", Verdict::drop},
      {"!= 3", R"({"f": "3"})", Verdict::drop},  // another type
      {"== '3'", R"({"f": "3"})", Verdict::keep},
      {"== 3", R"({"f": 3.0})", Verdict::keep},
      {"in [en, 'pt br', \"de\"]", R"({"f": "pt br"})", Verdict::keep},
      {"in [1, 2]", R"({"f": 3})", Verdict::drop},
      {"in[1,2] and !=2", R"({"f": 1})", Verdict::keep},
      {"true", R"({"f": true})", Verdict::keep},
      {"true", R"({"f": 1})", Verdict::drop},
      {"<5", R"({"f": null})", Verdict::drop},
      {"<5", R"({"f": NaN})", Verdict::drop},
      {"!=5", R"({"f": NaN, "g": Infinity})", Verdict::drop},
      {">5", R"({"f": Infinity})", Verdict::keep},
      {"<5", R"({"f": -Infinity})", Verdict::keep},
      {"NaN", R"({"f": "NaN"})", Verdict::keep},  // the text, not the number
      {"'a\\'", R"({"f": "a\\", "g": NaN})", Verdict::keep},
      {"<5", R"({"f": [1]})", Verdict::drop},
      {"<5", "", Verdict::bad_json},
      {"<5", "{", Verdict::bad_json},
      {"<5", "[1]", Verdict::bad_json},
  };
  for (const auto& c : cases)
    EXPECT_EQ(judge("f", c.expression, c.json), c.verdict) << c.expression << " on " << c.json;
}

TEST(Filter, AllFieldsMustHold) {
  const Filter filter(Expressions{{"width", ">=512"}, {"status", "success"}});
  EXPECT_EQ(filter.judge(R"({"width": 600, "status": "success"})"), Verdict::keep);
  EXPECT_EQ(filter.judge(R"({"width": 600, "status": "failed"})"), Verdict::drop);
  EXPECT_EQ(Filter(Expressions{}).judge("no json"), Verdict::keep);
}

TEST(Filter, WrongExpressionsNameTheKey) {
  for (const char* expression :
       {"", "<", "<= true", "< 1 <2", "in 3", "in [1", "1..", "1..b", "'open", "< 1 and", "__import__('os')", "a b"}) {
    try {
      Filter(Expressions{{"punsafe", expression}});
      ADD_FAILURE() << expression;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::usage);
      EXPECT_THAT(error.what(), testing::HasSubstr("data.train.filters.punsafe"));
    }
  }
}

TEST(Filter, ExplainsWhatItDrops) {
  const Filter filter(Expressions{{"width", ">=512"}, {"punsafe", "<=0.1"}, {"lang", "en"}});
  const std::string why = filter.explain(R"({"width": 256, "lang": "en", "pwatermark": NaN})");
  EXPECT_THAT(why, testing::HasSubstr("width is 256, '>=512' is asked for"));
  EXPECT_THAT(why, testing::HasSubstr("punsafe is missing"));
  EXPECT_THAT(why, testing::Not(testing::HasSubstr("lang is")));
  EXPECT_THAT(why, testing::HasSubstr("keys there: lang, pwatermark, width"));
  EXPECT_EQ(filter.explain(""), "no metadata");
}

// Lines of the log that tell of filters.
int warnings(const std::string& file) {
  const std::string text = read_file(file);
  int count = 0;
  for (std::size_t at = text.find("have kept none"); at != text.npos; at = text.find("have kept none", at + 1)) ++count;
  return count;
}

TEST(FilterWatch, WarnsOnceWhenNothingIsKept) {
  test::TempFolder folder;
  log::init({"", 0, false, folder.path("log")});
  const Filter filter(Expressions{{"width", ">=512"}});
  const auto count = [&](FilterWatch& watch, int rows, const char* json) {
    for (int i = 0; i < rows; ++i) watch.count(filter.judge(json), json);
    log::flush();
    return warnings(folder.path("log"));
  };
  FilterWatch nothing(filter);
  EXPECT_EQ(count(nothing, 999, R"({"original_width": 600})"), 0);
  EXPECT_EQ(count(nothing, 1, R"({"original_width": 600})"), 1);
  EXPECT_THAT(read_file(folder.path("log")), testing::HasSubstr("keys there: original_width"));
  EXPECT_EQ(count(nothing, 2000, "{}"), 1);
  FilterWatch something(filter);
  EXPECT_EQ(count(something, 10, "{}"), 1);
  EXPECT_EQ(count(something, 1, R"({"width": 600})"), 1);
  EXPECT_EQ(count(something, 2000, "{}"), 1);
  FilterWatch few(filter);
  EXPECT_EQ(count(few, 3, "{}"), 1);
  few.warn_now();
  log::flush();
  EXPECT_EQ(warnings(folder.path("log")), 2);
  log::init({});
}

}  // namespace
}  // namespace millrace
