#include <fmt/format.h>

#include <cstdlib>

#include "config/config_fixture.h"

namespace millrace::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

class ConfigValue : public ConfigTest {};

TEST_F(ConfigValue, DefaultsStayWithoutInput) {
  const Root& root = good({});
  EXPECT_EQ(root.optim.lr, 1e-4);
  EXPECT_TRUE(root.data.stripes.is_auto());
  EXPECT_FALSE(root.data.validation);
}

struct Spelled {
  Policy policy = Policy::crop_then_resize;
  void describe(config::Section& s) {
    s.key("policy", policy,
          {{"auto", Policy::crop_then_resize},
           {"crop_then_resize", Policy::crop_then_resize},
           {"resize_then_crop", Policy::resize_then_crop}},
          "order of the two; auto = crop_then_resize");
  }
};

TEST(ConfigEnum, TwoWordsForOneValueAreNoChange) {
  for (const char* word : {"auto", "crop_then_resize"}) {
    Spelled spelled{Policy::resize_then_crop};
    const auto yaml = fmt::format("policy: {}\n", word);
    EXPECT_THAT(config::load_text(spelled, yaml, "a.yaml").problems(), IsEmpty());
    EXPECT_EQ(spelled.policy, Policy::crop_then_resize);
    EXPECT_EQ(config::dump_yaml(spelled), "policy: auto\n");
    EXPECT_THAT(config::diff(yaml, Spelled{}), IsEmpty());
  }
}

// A file is for several commands, what is typed for this one.
TEST_F(ConfigValue, OverridesOfOtherCommandsAreNoticed) {
  const auto report =
      load({"generate: {seed: 1, steps: 2}"}, {"generate.steps=3", "generate.sizes=[4,5]", "run.seed=6"});
  EXPECT_THAT(report.problems(), IsEmpty());
  EXPECT_THAT(report.unread, ElementsAre("generate.steps", "generate.sizes"));
}

TEST_F(ConfigValue, NullTakesAnEntryOutOfAFreeMap) {
  const Root& root = good({"data: {train: {filters: {width: '>= 256', nsfw: no, ratio: '> 1', word: 'null'}}}",
                           "data: {train: {filters: {ratio: null}}}"},
                          {"data.train.filters.nsfw=null", "data.train.filters.none=null"});
  EXPECT_THAT(root.data.train.filters, ElementsAre(Pair("width", ">= 256"), Pair("word", "null")));
}

TEST_F(ConfigValue, AnEntryOfAFreeMapHasAValue) {
  EXPECT_THAT(load({"data: {train: {filters: {width: '>= 256', nsfw: }}}"}, {}).problems(),
              ElementsAre(testing::AllOf(HasSubstr("data.train.filters"), HasSubstr("'nsfw' has no value"))));
}

TEST_F(ConfigValue, EveryTypeIsReadFromYaml) {
  const Root& root = good({R"(
run: {seed: 18446744073709551615, note: "null", room: 1 GiB, policy: crop_then_resize, validation_policy: resize_then_crop, steps: [1, 2_000]}
data:
  allow_pipes: yes
  stripes: 64
  train: {type: parquet, path: [a.parquet, b.parquet], limit: 5, filters: {width: '>= 256', nsfw: no, ratio: 1.50}}
  validation: {path: v.tar}
optim: {lr: 2e-4, betas: [0, .95], clip: null, warmup: 1.1G samples}
duration: 20 min
)"},
                          {"data.train.path=[c.parquet]"});
  EXPECT_EQ(root.run.seed, 18446744073709551615u);
  EXPECT_EQ(root.run.note, "null");
  EXPECT_EQ(root.run.room.value, 1u << 30);
  EXPECT_EQ(root.run.policy, Policy::crop_then_resize);
  EXPECT_EQ(root.run.validation_policy.value, Policy::resize_then_crop);
  EXPECT_THAT(root.run.steps, ElementsAre(1, 2000));
  EXPECT_TRUE(root.data.allow_pipes);
  EXPECT_EQ(root.data.stripes.value, 64);
  EXPECT_EQ(root.data.train.limit, 5);
  EXPECT_THAT(root.data.train.filters, ElementsAre(Pair("nsfw", "no"), Pair("ratio", "1.50"), Pair("width", ">= 256")));
  ASSERT_TRUE(root.data.validation);
  EXPECT_THAT(root.data.validation->path, ElementsAre("v.tar"));
  EXPECT_EQ(root.data.validation->type, "webdataset");
  EXPECT_EQ(root.optim.lr, 2e-4);
  EXPECT_THAT(root.optim.betas, ElementsAre(0, 0.95));
  EXPECT_FALSE(root.optim.clip);
  EXPECT_EQ(root.optim.warmup, (Duration{1.1e9, Duration::Unit::samples}));
  EXPECT_EQ(root.duration, Duration::seconds(1200));
}

// What stands in quotes is not cut; a quote behind a letter is an apostrophe.
TEST_F(ConfigValue, ListsOfACommandLineAreCutAtTheirCommas) {
  const auto items = [&](const std::string& list) {
    return good({}, {"run.dir=x", "data.train.path=" + list}).data.train.path;
  };
  EXPECT_THAT(items("[/it's/a.tar,/b.tar]"), ElementsAre("/it's/a.tar", "/b.tar"));
  EXPECT_THAT(items("['a,b.tar', \"c'd\", e{1,2}.tar]"), ElementsAre("a,b.tar", "c'd", "e{1,2}.tar"));
  EXPECT_THAT(items("[pipe:cat 'a,b.tar',x.tar]"), ElementsAre("pipe:cat 'a,b.tar'", "x.tar"));
  EXPECT_THAT(items("[pipe:curl -H \"A: b, c\" u,/the boys' own/a.tar,b.tar]"),
              ElementsAre("pipe:curl -H \"A: b, c\" u", "/the boys' own/a.tar", "b.tar"));
}

TEST_F(ConfigValue, LaterFilesAndOverridesWin) {
  const Root& root =
      good({"optim: {lr: 1, clip: 2}\ndata: {train: {filters: {a: '1', b: '2'}}}\nrun: {steps: [1, 2, 3]}",
            "optim: {lr: 3}\ndata: {train: {filters: {b: '4'}}}\nrun: {steps: [9]}"},
           {"optim.lr=5", "optim.lr=6"});
  EXPECT_EQ(root.optim.lr, 6);
  EXPECT_EQ(root.optim.clip, 2);  // maps merge
  EXPECT_THAT(root.data.train.filters, ElementsAre(Pair("a", "1"), Pair("b", "4")));
  EXPECT_THAT(root.run.steps, ElementsAre(9));  // lists replace
}

TEST_F(ConfigValue, MissingMarkErasesNothing) {
  EXPECT_EQ(good({"optim: {lr: 2}", "optim: {lr: ???}"}).optim.lr, 2);
  EXPECT_EQ(good({"optim: {lr: ???}", "optim: {lr: 2}"}).optim.lr, 2);
}

TEST_F(ConfigValue, AnEmptySectionErasesNothing) {
  EXPECT_EQ(good({"optim: {lr: 2}", "optim:\n  # lr: 3\n"}).optim.lr, 2);
  EXPECT_EQ(good({"optim:"}).optim.lr, 1e-4);
}

TEST_F(ConfigValue, AnOptionalSectionCanBeTakenBack) {
  EXPECT_FALSE(good({"data: {validation: {path: v.tar}}"}, {"data.validation=null"}).data.validation);
  EXPECT_EQ(good({}, {"data.validation.path=v.tar", "data.validation.limit=3"}).data.validation->limit, 3);
  EXPECT_EQ(good({}, {"data.validation={path: v.tar, limit: 4}"}).data.validation->limit, 4);
}

TEST_F(ConfigValue, TextMayBeginWithTheHomeFolder) {
  const std::string home = std::getenv("HOME");
  const auto path_of = [&](const std::string& text) { return good({}, {"data.train.path=" + text}).data.train.path; };
  EXPECT_THAT(path_of("~/a.tar"), ElementsAre(home + "/a.tar"));
  EXPECT_THAT(path_of("[~/a.tar,'~/{0..9}.tar',~b/c,d/~/e]"),
              ElementsAre(home + "/a.tar", home + "/{0..9}.tar", "~b/c", "d/~/e"));
  EXPECT_EQ(good({"run: {note: ~/x}"}).run.note, home + "/x");
}

TEST_F(ConfigValue, OverridesOfTextAreVerbatim) {
  const Root& root = good({}, {"run.dir=a: b # c, [d] = 'e'", "run.note= 010 ", "data.train.filters.width=>= 256",
                               "data.train.filters.a.b=yes"});
  EXPECT_EQ(root.run.dir.value, "a: b # c, [d] = 'e'");
  EXPECT_EQ(root.run.note, " 010 ");
  EXPECT_THAT(root.data.train.filters, ElementsAre(Pair("a.b", "yes"), Pair("width", ">= 256")));
  EXPECT_FALSE(good({"run: {note: x}"}, {"run.note=null"}).run.note);
}

TEST_F(ConfigValue, OverridesOfListsKeepBracePatternsWhole) {
  const auto path_of = [&](const std::string& text) { return good({}, {"data.train.path=" + text}).data.train.path; };
  EXPECT_THAT(path_of("a.tar"), ElementsAre("a.tar"));
  EXPECT_THAT(path_of("{00..10}.tar"), ElementsAre("{00..10}.tar"));
  EXPECT_THAT(path_of("[a.tar,b.tar]"), ElementsAre("a.tar", "b.tar"));
  EXPECT_THAT(path_of("[ {a,b}-{0..9}.tar , 'c,d.tar' ]"), ElementsAre("{a,b}-{0..9}.tar", "c,d.tar"));
  EXPECT_THAT(path_of("pipe:cat x[1].tar"), ElementsAre("pipe:cat x[1].tar"));
  EXPECT_THAT(good({}, {"optim.betas=[0.8, 9e-1]"}).optim.betas, ElementsAre(0.8, 0.9));
  EXPECT_THAT(good({"run: {steps: [1]}"}, {"run.steps=[]"}).run.steps, IsEmpty());
  EXPECT_THAT(good({}, {"run.steps=7"}).run.steps, ElementsAre(7));
}

TEST_F(ConfigValue, OtherCommandsSectionsAreLeftAlone) {
  good({"generate: {steps: 30}"}, {"generate.seed=3"});
}

TEST_F(ConfigValue, AnchorsAndAliasesWork) {
  const Root& root = good({"data:\n  train: &source {limit: 5, path: a.tar}\n  validation: *source\n"});
  EXPECT_EQ(root.data.validation->limit, 5);
}

// As PyYAML merges them: own keys win, then those of the earlier map, wherever the line stands.
TEST_F(ConfigValue, MergeKeysWork) {
  const Root& root = good({R"(
generate: {a: &a {limit: 5, type: parquet, filters: {x: '1'}}, b: &b {limit: 6, path: [b.tar], filters: {y: '2'}}}
data:
  train: {<<: [*a, *b], type: webdataset}
  validation: &v
    path: v.tar
    <<: *b
optim: {<<: {lr: 3, clip: 4}, lr: 5}
)"});
  EXPECT_EQ(root.data.train.limit, 5);
  EXPECT_EQ(root.data.train.type, "webdataset");
  EXPECT_THAT(root.data.train.filters, ElementsAre(Pair("x", "1")));
  ASSERT_TRUE(root.data.validation);
  EXPECT_THAT(root.data.validation->path, ElementsAre("v.tar"));
  EXPECT_EQ(root.data.validation->limit, 6);
  EXPECT_THAT(root.data.validation->filters, ElementsAre(Pair("y", "2")));
  EXPECT_EQ(root.optim.lr, 5);
  EXPECT_EQ(root.optim.clip, 4);
}

// What has merged something is merged with it.
TEST_F(ConfigValue, MergeKeysWorkThroughAnchors) {
  const Root& root = good({R"(
generate: {a: &a {limit: 5}, b: &b {<<: *a, path: b.tar}, none: {<<: []}}
data: {validation: {<<: *b}}
)"});
  ASSERT_TRUE(root.data.validation);
  EXPECT_EQ(root.data.validation->limit, 5);
  EXPECT_THAT(root.data.validation->path, ElementsAre("b.tar"));
}

TEST_F(ConfigValue, JsonIsYaml) {
  EXPECT_EQ(good({R"({"optim": {"lr": 1e-3, "clip": null}})"}).optim.lr, 1e-3);
}

}  // namespace
}  // namespace millrace::test
