// Keys, words and sections that are described before they are built, and findings that follow from refused values.
#include "config/config_fixture.h"

namespace millrace::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

enum class Strategy { ddp, full, hybrid };

struct Parallel {
  Strategy strategy = Strategy::ddp;
  config::Auto<Strategy> inner;
  int size = 4;
  std::optional<std::string> log;
  Duration every = Duration::steps(1000);

  void describe(config::Section& s) {
    const auto names = {std::pair<std::string_view, Strategy>{"ddp", Strategy::ddp},
                        {"full", Strategy::full},
                        {"hybrid", Strategy::hybrid}};
    s.key("strategy", strategy, names, "what is split").later({"full", "hybrid"});
    s.key("inner", inner, names, "the same inside a node").later({"hybrid"});
    s.key("size", size, "of a group").at_least(1).later();
    s.key("log", log, "file").later();
    s.key("every", every, "cadence");
  }
};

struct Samples {
  std::vector<std::int64_t> sizes{1, 2};
  Duration every = Duration::steps(1000);

  void describe(config::Section& s) {
    s.key("sizes", sizes, "of pictures");
    s.key("every", every, "how often");
  }
};

struct LaterRoot {
  Parallel parallel;
  Samples samples, built;
  std::optional<Samples> extra;

  void describe(config::Section& s) {
    s.section("parallel", parallel, "who shares what");
    s.section("samples", samples, "pictures").later();
    s.section("extra", extra, "more pictures").later();
    s.section("built", built, "pictures that are there");
  }
};

class ConfigLater : public testing::Test {
 protected:
  std::vector<std::string> problems(const std::string& yaml, std::vector<std::string> overrides = {}) {
    return config::load(root_, {.files = {dir_.write("a.yaml", yaml)}, .overrides = std::move(overrides)}).problems();
  }

  TempDir dir_;
  LaterRoot root_;
};

TEST_F(ConfigLater, OnlyTheDefaultIsAcceptedHoweverItIsWritten) {
  EXPECT_THAT(problems("parallel: {size: 4, log: null}\nsamples: {sizes: [1, 2], every: 1k steps}\nextra: null"),
              IsEmpty());
  EXPECT_THAT(problems("parallel:\n  size: 8", {"parallel.log=x.prom", "samples.every=5 steps"}),
              ElementsAre(AllOf(HasSubstr("a.yaml:2: parallel.size: "), HasSubstr("'8' is not available yet")),
                          AllOf(HasSubstr("override: parallel.log: "), HasSubstr("'x.prom' is not available yet")),
                          AllOf(HasSubstr("override: samples.every: "), HasSubstr("'5 steps' is not available yet"))));
  EXPECT_EQ(root_.parallel.size, 4);
  EXPECT_EQ(root_.parallel.log, std::nullopt);
}

TEST_F(ConfigLater, OtherWordsOfAnEnumWork) {
  EXPECT_THAT(problems("parallel: {strategy: ddp, inner: full}"), IsEmpty());
  EXPECT_EQ(root_.parallel.inner.value, Strategy::full);
  EXPECT_THAT(problems("parallel: {strategy: full, inner: hybrid}"),
              ElementsAre(HasSubstr("parallel.strategy: 'full' is not available yet"),
                          HasSubstr("parallel.inner: 'hybrid' is not available yet")));
}

TEST_F(ConfigLater, AnOptionalSectionIsRefusedAsAWhole) {
  EXPECT_THAT(problems("extra:\n  every: 5 steps\n  sizes: [7]"),
              ElementsAre(HasSubstr("a.yaml:2: extra: is not available yet")));
  EXPECT_FALSE(root_.extra.has_value());
}

TEST_F(ConfigLater, AWrongValueIsWrongFirst) {
  EXPECT_THAT(problems("parallel: {size: many}"), ElementsAre(HasSubstr("parallel.size: expected whole number")));
  EXPECT_THAT(problems("parallel: {size: 0}"), ElementsAre(HasSubstr("parallel.size: expected whole number >= 1")));
}

TEST_F(ConfigLater, HelpSaysSoBehindTheKeyAndTheWordAndNowhereElse) {
  const std::string help = config::help(LaterRoot{});
  EXPECT_THAT(help, testing::ContainsRegex("parallel.size \\(not yet\\) +4 +whole number >= 1 +of a group\n"));
  EXPECT_THAT(help,
              testing::ContainsRegex("parallel.strategy +ddp +ddp \\| full \\(not yet\\) \\| hybrid \\(not yet\\) "));
  EXPECT_THAT(help, testing::ContainsRegex("parallel.inner +auto +ddp \\| full \\| hybrid \\(not yet\\) or auto "));
  EXPECT_THAT(help, testing::ContainsRegex("parallel.every +1000 steps +duration +cadence\n"));
  EXPECT_THAT(help, HasSubstr("samples: pictures (not yet)\n  samples.sizes (not yet) "));
  EXPECT_THAT(help, HasSubstr("extra: more pictures (null or a section) (not yet)\n  extra.sizes (not yet) "));
  EXPECT_THAT(help, HasSubstr("built: pictures that are there\n  built.sizes  "));
}

TEST_F(ConfigLater, TheTablesSayTheSame) {
  const std::string tables = config::markdown(LaterRoot{});
  EXPECT_THAT(tables, HasSubstr("| `parallel.size` (not yet) | `4` | whole number >= 1 | of a group |"));
  EXPECT_THAT(tables, HasSubstr("| ddp \\| full (not yet) \\| hybrid (not yet) | what is split |"));
  EXPECT_THAT(tables, HasSubstr("| `samples.every` (not yet) | `1000 steps` |"));
  EXPECT_THAT(tables, HasSubstr("| `built.every` | `1000 steps` |"));
}

// What one command reads of a section that several share.
struct SomeOfIt {
  Parallel parallel;
  void describe(config::Section& s) { s.section("parallel", parallel, "who").ignore({"size", "log"}); }
};

TEST_F(ConfigLater, DescribedKeysThatACommandDoesNotReadAreLeftAlone) {
  SomeOfIt some;
  const auto report = config::load(
      some, {.files = {dir_.write("a.yaml", "parallel: {size: 9, log: x, every: 3 steps}")}, .overrides = {}});
  EXPECT_THAT(report.problems(), IsEmpty());
  EXPECT_EQ(some.parallel.size, 4);
  EXPECT_EQ(some.parallel.every, Duration::steps(3));
  EXPECT_THAT(config::help(SomeOfIt{}), AllOf(HasSubstr("parallel.every"), Not(HasSubstr("parallel.size"))));
}

class ConfigFindings : public ConfigTest {};

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

}  // namespace
}  // namespace millrace::test
