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
  EXPECT_EQ(note("${oc.env:MILLRACE_TEST,5}"), "0.25");
  EXPECT_EQ(note("${oc.env:MILLRACE_NONE,5}"), "5");
  EXPECT_EQ(note("${oc.env:MILLRACE_NONE, 'a, b'}"), "a, b");
  EXPECT_EQ(note("${oc.env:MILLRACE_NONE,${run.dir}/x}"), "/run/x");
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

TEST_F(ConfigReference, OneBrokenReferenceIsReportedOnce) {
  const config::Report report =
      load({"optim: {lr: '${optim.clip}', clip: '${optim.x}', betas: ['${optim.x}', 1]}\nrun: {note: '${optim.lr}'}"});
  EXPECT_EQ(report.problems().size(), 2u) << testing::PrintToString(report.problems());
}

}  // namespace
}  // namespace millrace::test
