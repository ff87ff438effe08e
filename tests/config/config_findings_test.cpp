// Findings that follow from refused values, and values that nobody reads.
#include <cstdlib>

#include "config/config_fixture.h"

namespace millrace::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class ConfigFindings : public ConfigTest {};

// What one command reads of a section that several share.
struct SomeOfIt {
  Optim optim;
  void describe(config::Section& s) { s.section("optim", optim, "AdamW").ignore({"betas", "clip"}); }
};

TEST_F(ConfigFindings, DescribedKeysThatACommandDoesNotReadAreLeftAlone) {
  SomeOfIt some;
  const auto report =
      config::load(some, {.files = {dir_.write("a.yaml", "optim: {betas: 9, clip: x, lr: 0.5}")}, .overrides = {}});
  EXPECT_THAT(report.problems(), IsEmpty());
  EXPECT_EQ(some.optim.clip, 1.0);
  EXPECT_EQ(some.optim.lr, 0.5);
  EXPECT_THAT(config::help(SomeOfIt{}), AllOf(HasSubstr("optim.lr"), Not(HasSubstr("optim.clip"))));
}

TEST_F(ConfigFindings, AreLeftOutWhereTheyRestOnARefusedValue) {
  config::Report report =
      load({"optim: {lr: fast, clip: 2}\ndata:\n  validation: 3\n  stripes: ${run.nothing}\n  allow_pipes: true"});
  ASSERT_EQ(report.problems().size(), 3u) << testing::PrintToString(report.problems());
  report.problem("optim.lr", "too small");
  report.problem("optim.clip", "too large for optim.lr", {"optim.lr"});
  report.problem("data.validation.path", "must be set");
  report.problem("data.stripes", "does not divide");
  EXPECT_EQ(report.problems().size(), 3u) << testing::PrintToString(report.problems());
  report.problem("optim.clip", "too large for optim.betas", {"optim.betas"});
  report.problem("data.allow_pipes", "dangerous");
  ASSERT_EQ(report.problems().size(), 5u);
  EXPECT_THAT(report.problems()[3], HasSubstr("a.yaml:1: optim.clip: too large for optim.betas"));
  EXPECT_THAT(report.problems()[4], HasSubstr("a.yaml:5: data.allow_pipes: dangerous"));
}

TEST_F(ConfigFindings, RefusedValuesLeaveTheDefault) {
  EXPECT_EQ(load({"optim: {lr: -1, betas: [0.5, 1]}\ndata: {stripes: 0}"}).problems().size(), 3u);
  EXPECT_EQ(root_.optim.lr, 1e-4);
  EXPECT_EQ(root_.optim.betas, (std::array<double, 2>{0.9, 0.999}));
  EXPECT_TRUE(root_.data.stripes.is_auto());
}

TEST_F(ConfigFindings, NothingIsNoValueForWhatMustBeSet) {
  for (const char* text : {"data.train.path=[]", "data.train.path=['']"})
    EXPECT_THAT(load({}, {text}).problems(), ElementsAre("override: data.train.path: must be set (archives)")) << text;
  EXPECT_THAT(load({}, {"data.train.path="}).problems(),
              ElementsAre("override: data.train.path: expected list of text, got ''"));
  EXPECT_THAT(load({}, {"run.dir="}).problems(), ElementsAre("override: run.dir: expected text, got ''"));
}

TEST_F(ConfigFindings, TellWhatWasTypedHoweverItsValueWasFound) {
  ::setenv("MILLRACE_TEST", "0.25", 1);
  const std::string variable = "${oc.env:MILLRACE_TEST}";
  const auto report = load({"optim: {clip: 2}\ngenerate: {seed: '" + variable + "'}"},
                           {"optim.lr=" + variable, "run.seed=5", "generate.steps=" + variable});
  EXPECT_THAT(report.problems(), IsEmpty());
  EXPECT_EQ(report.origin("optim.lr"), "env MILLRACE_TEST (override)");
  for (const char* key : {"optim.lr", "run.seed"}) EXPECT_TRUE(report.is_typed(key) && report.is_set(key)) << key;
  EXPECT_TRUE(report.is_set("optim.clip") && !report.is_typed("optim.clip"));
  for (const char* key : {"optim.betas", "duration", "optim.lrr"})
    EXPECT_FALSE(report.is_typed(key) || report.is_set(key)) << key;
  EXPECT_THAT(report.unread, ElementsAre("generate.steps")) << "a file may be for other commands";
}

}  // namespace
}  // namespace millrace::test
