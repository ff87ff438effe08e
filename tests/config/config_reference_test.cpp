#include <stdlib.h>

#include "config/config_fixture.h"

namespace millrace::test {
namespace {

using testing::ElementsAre;
using testing::Pair;

// ${...}, as OmegaConf 2.3 reads it.
class ConfigReference : public ConfigTest {
 protected:
  std::string note(const std::string& text, std::vector<std::string> overrides = {}) {
    overrides.push_back("run.note=" + text);
    return good({}, std::move(overrides)).run.note.value_or("(null)");
  }
};

TEST_F(ConfigReference, NamesKeysFromTheTopAndNearby) {
  EXPECT_EQ(note("${optim.warmup}"), "10000 steps");  // a default
  EXPECT_EQ(note("${.dir}/x"), "/run/x");
  EXPECT_EQ(note("${..optim.lr}"), "0.0001");
  EXPECT_EQ(note("${optim.betas[1]} ${optim.betas.1}"), "0.999 0.999");
  EXPECT_EQ(note("${ run.dir }"), "/run");
  EXPECT_EQ(note("$notes cost $5 {}"), "$notes cost $5 {}");
}

TEST_F(ConfigReference, KeepsTheTypeOfWhatItNames) {
  const Root& root =
      good({"optim: {lr: 0.5, clip: '${.lr}', betas: ['${..lr}', '${optim.lr}']}\nduration: ${optim.warmup}"},
           {"data.validation=${data.train}", "data.train.filters.width=> 3"});
  EXPECT_EQ(root.optim.clip, 0.5);
  EXPECT_EQ(root.duration, Duration::steps(10000));
  ASSERT_TRUE(root.data.validation);
  EXPECT_THAT(root.data.validation->path, ElementsAre("a.tar"));
  EXPECT_THAT(root.data.validation->filters, ElementsAre(Pair("width", "> 3")));
}

// Inside a list, one dot means the list itself.
TEST_F(ConfigReference, StartsFromTheListInsideAList) {
  EXPECT_THAT(good({"optim: {lr: 0.5, betas: ['${..lr}', 0.25]}"}).optim.betas, ElementsAre(0.5, 0.25));
}

TEST_F(ConfigReference, FollowsChainsAndNests) {
  const Root& root =
      good({"run: {note: '${generate.${generate.which}}'}\ngenerate: {which: b, a: 1, b: '${.c}', c: '${.a}0'}"});
  EXPECT_EQ(root.run.note, "10");
}

TEST_F(ConfigReference, BackslashKeepsItLiteral) {
  EXPECT_EQ(note("\\${run.dir}"), "${run.dir}");
  EXPECT_EQ(note("\\\\${run.dir}"), "\\/run");
  EXPECT_EQ(note("a\\b \\${x} ${run.dir}"), "a\\b ${x} /run");
}

TEST_F(ConfigReference, ReadsTheEnvironment) {
  ::setenv("MILLRACE_TEST", "0.25", 1);
  ::unsetenv("MILLRACE_NONE");
  const config::Report report = load({"optim:\n  lr: ${oc.env:MILLRACE_TEST}"});
  EXPECT_EQ(root_.optim.lr, 0.25);
  EXPECT_EQ(report.origin("optim.lr").substr(0, 19), "env MILLRACE_TEST (");
  EXPECT_FALSE(report.is_typed("optim.lr"));
  EXPECT_EQ(note("${oc.env:MILLRACE_TEST,5}"), "0.25");
  EXPECT_EQ(note("${oc.env:MILLRACE_NONE,5}"), "5");
  EXPECT_EQ(note("${oc.env:MILLRACE_NONE, 'a, b'}"), "a, b");
  EXPECT_EQ(note("${oc.env:MILLRACE_NONE,${run.dir}/x}"), "/run/x");
  EXPECT_EQ(note("${oc.env:MILLRACE_NONE,'${run.dir}, x'}"), "/run, x");
  EXPECT_EQ(note("${oc.env:MILLRACE_NONE,null}"), "(null)");
  ::setenv("MILLRACE_TEST", "${run.dir}", 1);
  EXPECT_EQ(note("${oc.env:MILLRACE_TEST}"), "${run.dir}");  // data, not a reference
}

TEST_F(ConfigReference, DecodesText) {
  ::setenv("MILLRACE_TEST", "[0.5, 0.75]", 1);
  EXPECT_THAT(good({"optim: {betas: '${oc.decode:${oc.env:MILLRACE_TEST}}'}"}).optim.betas, ElementsAre(0.5, 0.75));
  EXPECT_FALSE(good({"optim: {clip: '${oc.decode:null}'}"}).optim.clip);
}

TEST_F(ConfigReference, SelectsOrFallsBack) {
  EXPECT_EQ(note("${oc.select:run.dir,x}"), "/run");
  EXPECT_EQ(note("${oc.select:run.nothing,x}"), "x");
  EXPECT_EQ(note("${oc.select:run.nothing}"), "(null)");
}

// As OmegaConf merges onto what an interpolation means.
TEST_F(ConfigReference, WhatIsSetBelowOneIsMergedOntoWhatItMeans) {
  const std::string file =
      "data:\n  train: {path: ???, limit: 5, filters: {width: '> 3', aes: '> 4'}}\n  validation: ${data.train}\n";
  const Root& root = good({file}, {"data.validation.limit=8", "data.validation.filters.aes=null",
                                   "data.validation.filters.ratio=> 1", "data.train.path=late.tar"});
  ASSERT_TRUE(root.data.validation);
  EXPECT_THAT(root.data.validation->path, ElementsAre("late.tar"));
  EXPECT_EQ(root.data.validation->limit, 8);
  EXPECT_THAT(root.data.validation->filters, ElementsAre(Pair("ratio", "> 1"), Pair("width", "> 3")));
  EXPECT_EQ(root.data.train.limit, 5);
  EXPECT_THAT(root.data.train.filters, ElementsAre(Pair("aes", "> 4"), Pair("width", "> 3")));
}

TEST_F(ConfigReference, FreeMapsMergeWithReferencesToo) {
  const Root& root = good({"data:\n  train: {filters: {width: '> 3'}}\n"
                           "  validation: {path: v.tar, filters: '${data.train.filters}'}\n"},
                          {"data.validation.filters.aes=> 3"});
  EXPECT_THAT(root.data.validation->filters, ElementsAre(Pair("aes", "> 3"), Pair("width", "> 3")));
}

TEST_F(ConfigReference, LaterFilesMergeWithReferencesToo) {
  const Root& root = good({"data: {train: {limit: 5}, validation: '${.train}'}",
                           "data: {validation: {limit: 6, type: parquet}}", "data: {validation: {limit: 7}}"});
  EXPECT_EQ(root.data.validation->limit, 7);
  EXPECT_EQ(root.data.validation->type, "parquet");
  EXPECT_THAT(root.data.validation->path, ElementsAre("a.tar"));
  EXPECT_FALSE(
      good({"data: {validation: '${.train}'}"}, {"data.validation.limit=8", "data.validation=null"}).data.validation);
}

// One merged section may be the base of another, in any order, and what is set there may refer to it.
TEST_F(ConfigReference, MergedSectionsFollowEachOther) {
  const Root& root =
      good({"data: {validation: '${.train}', train: '${generate.base}'}\n"
            "generate: {base: {limit: 5, path: [g.tar], filters: {a: '1'}}, n: '${data.validation.limit}'}\n"
            "run: {note: '${generate.n}'}"},
           {"data.validation.filters.b=${data.train.filters.a}${data.train.limit}", "data.train.limit=6"});
  EXPECT_EQ(root.data.train.limit, 6);
  EXPECT_EQ(root.data.validation->limit, 6);
  EXPECT_THAT(root.data.validation->path, ElementsAre("a.tar"));
  EXPECT_THAT(root.data.validation->filters, ElementsAre(Pair("a", "1"), Pair("b", "16")));
  EXPECT_EQ(root.run.note, "6");
}

TEST_F(ConfigReference, WhatIsSetBelowANullOrAValueReplacesIt) {
  const std::string file = "generate: {none: null, word: x}\ndata: {validation: '${generate.NAME}'}";
  for (const std::string name : {"none", "word"}) {
    std::string text = file;
    text.replace(text.find("NAME"), 4, name);
    const Root& root = good({text}, {"data.validation.path=v.tar"});
    EXPECT_THAT(root.data.validation->path, ElementsAre("v.tar")) << name;
  }
}

TEST_F(ConfigReference, MergedValuesKeepTheirPlaces) {
  const config::Report report =
      load({"data:\n  train: {limit: 5}\n  validation: ${data.train}\n"}, {"data.validation.limit=8"});
  EXPECT_EQ(report.origin("data.validation.limit"), "override");
  EXPECT_THAT(report.origin("data.validation.path"), testing::EndsWith("a.yaml:3"));
}

TEST_F(ConfigReference, TheKeyOfAMapThatHoldsDotsHasItsPlace) {
  const config::Report report = load({"data:\n  train:\n    filters:\n      json.width: '>=1'\n"});
  EXPECT_THAT(report.origin("data.train.filters.json.width"), testing::EndsWith("a.yaml:4"));
  EXPECT_EQ(report.origin("data.train.filters.json.height"), "");
}

TEST_F(ConfigReference, OneBrokenReferenceIsReportedOnce) {
  const config::Report report =
      load({"optim: {lr: '${optim.clip}', clip: '${optim.x}', betas: ['${optim.x}', 1]}\nrun: {note: '${optim.lr}'}"});
  EXPECT_EQ(report.problems().size(), 2u) << testing::PrintToString(report.problems());
}

}  // namespace
}  // namespace millrace::test
