#include <yaml-cpp/yaml.h>

#include <nlohmann/json.hpp>

#include "config/config_fixture.h"
#include "millrace/config/flatten.h"

namespace millrace::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class ConfigPrint : public ConfigTest {
 protected:
  static constexpr const char* some = R"(
run: {note: 'a \${b} \\\${c} "d" # e', room: 1.5 GB, steps: [3, 4], validation_policy: crop_then_resize}
data:
  train: {filters: {width: ">= 256", nsfw: no, "a b": "1"}}
  validation: {path: ["v-{0..3}.tar", "- x: y", "012", "null", ""]}
optim: {lr: 1e-8, clip: null}
duration: 1.1G samples
)";
};

TEST_F(ConfigPrint, ADumpLoadsAsTheSameConfiguration) {
  const Root first = good({some});
  EXPECT_EQ(first.run.note, "a ${b} \\${c} \"d\" # e");
  const std::string dump = config::dump_yaml(first);
  Root second;
  EXPECT_THAT(config::load(second, {.files = {dir_.write("dump.yaml", dump)}, .overrides = {}}).problems(), IsEmpty())
      << dump;
  EXPECT_EQ(config::dump_yaml(second), dump);
  EXPECT_EQ(second.run.note, first.run.note);
  EXPECT_EQ(second.data.train.filters, first.data.train.filters);
  EXPECT_EQ(second.data.validation->path, first.data.validation->path);
  EXPECT_EQ(second.optim.lr, 1e-8);
  EXPECT_EQ(second.duration, first.duration);
  EXPECT_THAT(config::diff(dump, first), IsEmpty());
}

TEST_F(ConfigPrint, ADumpIsPlainYamlForOtherReaders) {
  const YAML::Node dump = YAML::Load(config::dump_yaml(good({some})));
  EXPECT_EQ(dump["optim"]["lr"].Scalar(), "1.0e-08");  // PyYAML takes 1e-08 for text
  EXPECT_TRUE(dump["optim"]["clip"].IsNull());
  EXPECT_EQ(dump["data"]["stripes"].Scalar(), "auto");
  EXPECT_EQ(dump["data"]["validation"]["path"][2].Tag(), "!");  // "012" is text
  EXPECT_EQ(dump["run"]["room"].Scalar(), "1500000000");
}

TEST_F(ConfigPrint, WhatIsNotSetPrintsAsSuch) {
  EXPECT_THAT(config::dump_yaml(Root{}), AllOf(HasSubstr("dir: ???"), HasSubstr("path: ???")));
}

TEST_F(ConfigPrint, OriginsAreComments) {
  ::setenv("MILLRACE_TEST", "x", 1);
  const config::Report report = load(
      {"optim:\n  lr: 2\nrun:\n  note: ${oc.env:MILLRACE_TEST}\ndata: {train: {filters: {a: b}}}"}, {"optim.clip=3"});
  const std::string text = config::print_yaml(root_, report);
  EXPECT_THAT(text, testing::ContainsRegex("lr: 2 +# .*a.yaml:2\n"));
  EXPECT_THAT(text, testing::ContainsRegex("clip: 3 +# override\n"));
  EXPECT_THAT(text, testing::ContainsRegex("warmup: 10000 steps +# default\n"));
  EXPECT_THAT(text, testing::ContainsRegex("note: x +# env MILLRACE_TEST"));
  EXPECT_THAT(text, testing::ContainsRegex("betas: .* +# default\n"));
  EXPECT_THAT(text, testing::ContainsRegex("a: b +# .*a.yaml:5\n"));
  EXPECT_THAT(text, testing::ContainsRegex("validation: null +# default\n"));
  EXPECT_NO_THROW(YAML::Load(text));
}

TEST_F(ConfigPrint, JsonKeepsTypes) {
  const auto json = nlohmann::json::parse(config::print_json(good({some})));
  EXPECT_EQ(json["optim"]["lr"], 1e-8);
  EXPECT_EQ(json["optim"]["clip"], nullptr);
  EXPECT_EQ(json["data"]["allow_pipes"], false);
  EXPECT_EQ(json["data"]["stripes"], "auto");
  EXPECT_EQ(json["data"]["train"]["filters"]["a b"], "1");
  EXPECT_EQ(json["run"]["steps"], nlohmann::json({3, 4}));
  EXPECT_EQ(json["run"]["seed"], 420);
  EXPECT_EQ(json["duration"], "1100000000 samples");
}

// What is printed says the same when it is read back, by other readers of YAML, too.
TEST_F(ConfigPrint, OddTextsComeBackInBothForms) {
  for (const auto& [text, is_quoted] : std::vector<std::pair<std::string, bool>>{{"${run.dir}", false},
                                                                                 {R"(a\${b})", false},
                                                                                 {"it's", false},
                                                                                 {".inf", true},
                                                                                 {"-.INF", true},
                                                                                 {".nan", true},
                                                                                 {"=", true},
                                                                                 {"<<", true},
                                                                                 {"010", true}}) {
    Root root = good({some});
    root.run.note = text;
    const std::string yaml = config::dump_yaml(root);
    for (const std::string& printed : {config::print_json(root), yaml}) EXPECT_EQ(good({printed}).run.note, text);
    EXPECT_EQ(YAML::Load(yaml)["run"]["note"].Tag() == "!", is_quoted) << yaml;
  }
}

TEST_F(ConfigPrint, HelpTellsKeyDefaultTypeAndMeaning) {
  const std::string all = config::help(Root{});
  EXPECT_THAT(all, testing::ContainsRegex("optim.lr +0.0001 +number >= 0 +learning rate after the warm-up\n"));
  EXPECT_THAT(all, testing::ContainsRegex("run.dir +\\?\\?\\? +text +folder of the run\n"));
  EXPECT_THAT(all, testing::ContainsRegex("data.validation.limit +null +whole number or null >= 1"));
  const std::string section = config::help(Root{}, "data.train");
  EXPECT_THAT(section, AllOf(HasSubstr("data.train.path"), Not(HasSubstr("optim")), Not(HasSubstr("data.shuffle"))));
  EXPECT_THROW(config::help(Root{}, "nothing"), Error);
}

TEST_F(ConfigPrint, MarkdownEscapesBars) {
  const std::string text = config::markdown(Root{});
  EXPECT_THAT(text, HasSubstr("## optim\n\nAdamW\n\n| key | default | type | meaning |\n"));
  EXPECT_THAT(
      text,
      HasSubstr("| `run.policy` | `resize_then_crop` | resize_then_crop \\| crop_then_resize | order of the two |\n"));
}

TEST_F(ConfigPrint, DiffNamesWhatChanged) {
  const Root before = good({some});
  Root after = before;
  after.optim.lr = 2e-8;
  after.data.validation.reset();
  after.data.train.filters["width"] = ">= 512";
  std::map<std::string, std::pair<std::string, std::string>> found;
  for (const config::Change& change : config::diff(config::dump_yaml(before), after))
    found[change.key] = {change.before, change.after};
  EXPECT_EQ(found.size(), 7u);
  EXPECT_EQ(found["optim.lr"], (std::pair<std::string, std::string>("1.0e-08", "2.0e-08")));
  EXPECT_EQ(found["data.validation"].second, "null");
  EXPECT_EQ(found["data.validation.limit"].second, "(none)");
  EXPECT_THAT(found["data.train.filters"].second, HasSubstr(">= 512"));
}

TEST(ConfigKeys, LieInASectionByWholeNames) {
  EXPECT_TRUE(config::is_in("data.train", "data.train"));
  EXPECT_TRUE(config::is_in("data.train.path", "data.train"));
  EXPECT_FALSE(config::is_in("data.training", "data.train"));
  EXPECT_FALSE(config::is_in("data", "data.train"));
}

// What a renamed key meant need not be what the new one means.
TEST_F(ConfigPrint, DiffNamesKeysThatWereRenamedSince) {
  Root root;
  root.run.dir = {"/r", true};
  root.data.stripes = {8};
  const auto found = config::diff("run: {dir: /r}\ndata: {lanes: 3}\n", root);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].key, "data.stripes");
  EXPECT_EQ(found[0].before, "data.lanes: 3");
  EXPECT_EQ(found[0].after, "8");
}

// A hand-edited or older file: the same value written otherwise is no change, absent keys have their defaults.
TEST_F(ConfigPrint, DiffComparesValuesNotText) {
  Root root;
  root.run.dir = {"/r", true};
  EXPECT_THAT(config::diff("run: {dir: /r, gone: 3}\noptim: {lr: 1.0E-4, warmup: 10k}\n", root), IsEmpty());
}

TEST(Flatten, MakesDottedKeysOfPrintedYaml) {
  const auto settings =
      config::flatten("run:\n  dir: /a: b\n  seed: 420\ndata:\n  train:\n    path: [a, b]\nduration: 5 steps\n");
  EXPECT_EQ(settings,
            (std::map<std::string, std::string>{
                {"run.dir", "/a: b"}, {"run.seed", "420"}, {"data.train.path", "[a, b]"}, {"duration", "5 steps"}}));
}

}  // namespace
}  // namespace millrace::test
