#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/dataset/filter.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/filter_watch.h"
#include "millrace/loader/sources.h"
#include "millrace/loader/stripe_stream.h"
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
      {"True", R"({"f": true})", Verdict::keep},  // as Python writes it into YAML
      {"!= FALSE", R"({"f": false})", Verdict::drop},
      {"'True'", R"({"f": true})", Verdict::drop},
      {"TRUE", R"({"f": "TRUE"})", Verdict::keep},  // as R writes it into CSV
      {"!= True", R"({"f": "True"})", Verdict::drop},
      {"!= True", R"({"f": "yes"})", Verdict::keep},
      {"!= True", R"({"f": 1})", Verdict::drop},
      {"in [1, False]", R"({"f": false})", Verdict::keep},
      {"false", R"({"f": "false"})", Verdict::drop},
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

TEST(Filter, IsTheSameHoweverItIsSpelled) {
  const auto is_same = [](const Expressions& left, const Expressions& right) {
    return Filter(left).is_same_as(Filter(right));
  };
  EXPECT_TRUE(is_same({}, {}));
  EXPECT_TRUE(is_same({{"f", ">=0.1 and <2"}}, {{"f", ">= 0.10  and <2.0"}}));
  EXPECT_TRUE(is_same({{"f", "in [en,de]"}}, {{"f", "in ['en', \"de\"]"}}));
  EXPECT_FALSE(is_same({{"f", ">=0.1"}}, {{"f", ">0.1"}}));
  EXPECT_FALSE(is_same({{"f", "1"}}, {{"f", "'1'"}}));
  EXPECT_FALSE(is_same({{"f", ">=0.1"}}, {{"g", ">=0.1"}}));
  EXPECT_FALSE(is_same({{"f", ">=0.1"}}, {}));
}

// Bare text: letters and digits of any script and _ . : / + -.
TEST(Filter, BareText) {
  for (const char* text : {"en",
                           "pt-BR",
                           "image/jpeg",
                           "a.b",
                           "a_b",
                           "c++",
                           "12:30:00",
                           "2020-01-02",
                           "caf\u00E9",
                           "\u65E5\u672C",
                           "\u0939\u093F\u0928\u094D\u0926\u0940",
                           "x\u0663",
                           "and",
                           "in",
                           "-",
                           "+-3",
                           "1e4x",
                           "nan",
                           "0x10",
                           "null"}) {
    const std::string json = nlohmann::json{{"f", text}}.dump();
    EXPECT_EQ(judge("f", text, json), Verdict::keep) << text;
    EXPECT_EQ(judge("f", fmt::format("in [{}, {}]", text, text), json), Verdict::keep) << text;
    EXPECT_EQ(judge("f", fmt::format("== {}", text), R"({"f": "?"})"), Verdict::drop) << text;
  }
}

TEST(Filter, Numbers) {
  for (const auto& [text, number] : std::vector<std::pair<std::string, double>>{
           {"1e-4", 1e-4}, {"-0.5", -0.5}, {"+3", 3}, {".5", 0.5}, {"1E+2", 100}, {"007", 7}}) {
    const std::string json = nlohmann::json{{"f", number}}.dump();
    EXPECT_EQ(judge("f", text, json), Verdict::keep) << text;
    EXPECT_EQ(judge("f", ">" + text, json), Verdict::drop) << text;
    EXPECT_EQ(judge("f", ">= " + text + " and <=" + text, json), Verdict::keep) << text;
    EXPECT_EQ(judge("f", text + ".." + text, json), Verdict::keep) << text;
    EXPECT_EQ(judge("f", text, nlohmann::json{{"f", text}}.dump()), Verdict::drop) << text;  // another type
  }
}

// Of which a double keeps 53 bits.
TEST(Filter, WholeNumbersOf64BitsAreExact) {
  EXPECT_EQ(judge("f", "9007199254740993", R"({"f": 9007199254740993})"), Verdict::keep);
  EXPECT_EQ(judge("f", "9007199254740993", R"({"f": 9007199254740992})"), Verdict::drop);
  EXPECT_EQ(judge("f", "> 9007199254740992", R"({"f": 9007199254740993})"), Verdict::keep);
  EXPECT_EQ(judge("f", "!= +9007199254740993", R"({"f": 9007199254740992.0})"), Verdict::keep);
  EXPECT_EQ(judge("f", "< -9223372036854775807", R"({"f": -9223372036854775808})"), Verdict::keep);
  EXPECT_EQ(judge("f", "in [18446744073709551615]", R"({"f": 18446744073709551614})"), Verdict::drop);
  EXPECT_EQ(judge("f", "18446744073709551615", R"({"f": 18446744073709551615})"), Verdict::keep);
  EXPECT_EQ(judge("f", "18446744073709551616", R"({"f": 18446744073709551616})"), Verdict::keep);
}

TEST(Filter, Ranges) {
  EXPECT_EQ(judge("f", "5.", R"({"f": 5})"), Verdict::keep);  // but 5...6 is from 5 to .6
  EXPECT_EQ(judge("f", "1..5", R"({"f": 5})"), Verdict::keep);
  EXPECT_EQ(judge("f", "0.1..0.5", R"({"f": 0.51})"), Verdict::drop);
  EXPECT_EQ(judge("f", "-.5 .. +.5", R"({"f": -0.5})"), Verdict::keep);
  EXPECT_EQ(judge("f", "1...5", R"({"f": 0.7})"), Verdict::drop);  // from 1 to .5
  EXPECT_EQ(judge("f", "a.b..a.d", R"({"f": "a.c"})"), Verdict::keep);
  EXPECT_EQ(judge("f", "'a b'..'a d'\n", R"({"f": "a c"})"), Verdict::keep);
}

TEST(Filter, WrongExpressionsNameTheKey) {
  std::vector<std::string> wrong = {"",        "<",       "<= true",  "< 1 <2",   "in 3",      "in [1",
                                    "1..",     "1..b",    "'open",    "< 1 and",  "a b",       "<=0.5)",
                                    "(((",     "0.5;",    "in []",    "in [a b]", "in [a,]",   "in [a]]",
                                    "..5",     "1..5..9", "=5",       "<=>5",     "< 1 or >2", "a\"b\"",
                                    "'a' 'b'", "1e999",   "< 1e-999", "\xFF",     "'\xC3('",   "a\xED\xA0\x80",
                                    "\u2028",  "\u00BD",  "a\u00A0b", "<5,",      "{a}",       "__import__('os')"};
  for (const char mark : std::string_view("()[]{}<>=!,;*?%&|^~#@$`'\"\\\x01\x7F")) {
    wrong.push_back(std::string("a") + mark + "b");
    wrong.push_back(std::string(1, mark));
  }
  for (const std::string& expression : wrong) {
    try {
      Filter(Expressions{{"punsafe", expression}});
      ADD_FAILURE() << expression;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::usage);
      EXPECT_THAT(error.what(), testing::HasSubstr("data.train.filters.punsafe"));
      EXPECT_EQ(std::string(error.what()).find_first_of("\x01\x7F"), std::string::npos) << expression;
    }
  }
}

TEST(Filter, QuotesTakeEverything) {
  for (const char* text : {"", " ", "a b", "(((", "<=0.5)", "a..b", "[x]", "50 %", "\u2028", "it's"}) {
    const std::string json = nlohmann::json{{"f", text}}.dump();
    EXPECT_EQ(judge("f", fmt::format("\"{}\"", text), json), Verdict::keep) << text;
  }
}

TEST(Filter, LooksAtARowForAPerson) {
  const Filter filter(Expressions{{"width", ">=512"}, {"punsafe", "<=0.1"}, {"lang", "en"}, {"title", "x"}});
  const Filter::Look look = filter.look_at(
      nlohmann::json{{"width", 256}, {"lang", "en"}, {"title", "\x1B[31m" + std::string(39, ' ') + "\u00E9"}}.dump());
  using testing::Optional;
  EXPECT_EQ(filter.describe(3), "width '>=512'");
  EXPECT_THAT(look.missed, testing::ElementsAre(std::nullopt, Optional(std::string("missing")), testing::_,
                                                Optional(std::string("256"))));
  EXPECT_THAT(*look.missed[2], testing::AllOf(testing::StartsWith("\"\\u001b[31m  "), testing::EndsWith(" ...")));
  EXPECT_EQ(look.keys, "lang, title, width");
  std::string many = "{\"k0\":0";
  for (int i = 1; i < 1000; ++i) many += fmt::format(",\"k{}\":0", i);
  EXPECT_LT(filter.look_at(many + "}").keys.size(), 300u);
}

int count_of(std::string_view part, std::string_view text) {
  int count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(FilterWatch, TellsWhatEachFilterDropsAndSees) {
  const Filter filter(Expressions{{"width", ">=512"}, {"punsafe", "<=0.1"}, {"lang", "en"}});
  FilterWatch watch(filter);
  std::uint64_t row = 0;
  const auto count = [&](const std::string& json) { watch.count(filter.judge(json), json, row++); };
  EXPECT_EQ(watch.report(), "");
  for (int i = 0; i < 3; ++i) count(R"({"width": 256, "lang": "en", "punsafe": 0})");
  for (const char* width : {"300", "\"600\"", "400"})
    count(fmt::format(R"({{"width": {}, "lang": "en", "punsafe": 0.5}})", width));
  count("no json");
  row = 0;
  for (int i = 0; i < 7; ++i) count(R"({"width": 100})");  // the second pass over the same rows
  const std::string report = watch.report();
  EXPECT_THAT(report, testing::StartsWith("data.train.filters have kept none of the first 7 rows"));
  EXPECT_THAT(report, testing::HasSubstr("width '>=512' dropped 6 (saw 256, 300, \"600\")"));
  EXPECT_THAT(report, testing::HasSubstr("punsafe '<=0.1' dropped 3 (saw 0.5)"));
  EXPECT_THAT(report, testing::HasSubstr("lang 'en' dropped 0;"));
  EXPECT_THAT(report, testing::HasSubstr("1 rows had no metadata"));
  EXPECT_THAT(report, testing::HasSubstr("keys of the first row: lang, punsafe, width"));
  count(R"({"width": 512, "lang": "en", "punsafe": 0})");
  EXPECT_EQ(watch.report(), "");
}

TEST(FilterWatch, WarnsOnceWhenNothingIsKept) {
  test::TempFolder folder;
  log::init({"", 0, false, folder.path("log")});
  const Filter filter(Expressions{{"width", ">=512"}}, "data.validation");
  std::uint64_t row = 0;
  const auto count = [&](FilterWatch& watch, int rows, const char* json) {
    for (int i = 0; i < rows; ++i) watch.count(filter.judge(json), json, row++);
    log::flush();
    return count_of("have kept none", read_file(folder.path("log")));
  };
  FilterWatch nothing(filter);
  EXPECT_EQ(count(nothing, 999, R"({"original_width": 600})"), 0);
  EXPECT_EQ(count(nothing, 1, R"({"original_width": 600})"), 1);
  EXPECT_THAT(read_file(folder.path("log")),
              testing::HasSubstr("data.validation.filters have kept none of the first 1000 rows: width '>=512' dropped "
                                 "1000 (saw missing); keys of the first row: original_width"));
  EXPECT_EQ(count(nothing, 2000, "{}"), 1);
  FilterWatch something(filter);
  EXPECT_EQ(count(something, 10, "{}"), 1);
  EXPECT_EQ(count(something, 1, R"({"width": 600})"), 1);
  EXPECT_EQ(count(something, 2000, "{}"), 1);
  log::init({});
}

// The error of a run: the rows are counted once, though the stripe has searched them several times.
TEST(FilterWatch, AStreamThatFindsNothingNamesTheFilters) {
  const test::TempFolder folder;
  std::vector<TarSample> samples;
  for (int i = 0; i < 12; ++i) {
    samples.push_back(test::sample(std::to_string(i), "", "a caption"));
    if (i % 2 == 1) samples.back().fields.erase(samples.back().fields.begin());  // filtered without an image, too
    samples.back().fields.emplace_back("json", fmt::format(R"({{"width": {}, "punsafe": 0.1}})", i % 4));
  }
  folder.write_tar("a.tar", samples);
  SourceConfig config;
  config.path = {folder.path("a.tar")};
  config.filters = {{"width", ">=512"}, {"punsafe", "<0.5"}};
  const Manifest manifest = make_manifest(config, false);
  const auto source = make_source(config, manifest, 16);
  const Filter filter(config.filters);
  TransformPipeline transforms;
  transforms.filter = &filter;
  const EpochOrder order(1, StripePlan{1, {{0, 0, 1}}});
  StripeStream stream(order, *source, transforms, {.threads = 2});
  stream.add(0, {});
  try {
    stream.next(0);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_data);
    EXPECT_THAT(error.what(), testing::HasSubstr("data.train.filters have kept none of the first 12 rows"));
    EXPECT_THAT(error.what(), testing::HasSubstr("width '>=512' dropped 12 (saw 0, 1, 2)"));
    EXPECT_THAT(error.what(), testing::HasSubstr("punsafe '<0.5' dropped 0;"));
  }
  EXPECT_THAT(stream.filter_report(), testing::HasSubstr("dropped 12"));
}

}  // namespace
}  // namespace millrace
