#include <gmock/gmock.h>

#include "command_line.h"
#include "millrace/core/error.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Arguments = std::vector<std::string>;

const std::vector<OptionSpec> options = {{"out", "DIR", "where"},
                                         {"prompt", "TEXT...", "what", OptionSpec::Takes::many},
                                         {"force", "", "go on", OptionSpec::Takes::nothing}};

CommandLine parse(const Arguments& arguments, bool takes_paths = false) {
  return parse_command_line(arguments, options, takes_paths);
}

std::string usage_error(const Arguments& arguments, bool takes_paths = false) {
  try {
    parse(arguments, takes_paths);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

std::vector<std::string> files_of(const CommandLine& line) {
  return {line.inputs.files.begin(), line.inputs.files.end()};
}

TEST(CommandLine, OverridesAndOptionsMayBeMixed) {
  const auto line = parse({"optim.lr=1e-4", "--out", "folder", "run.dir=/tmp/run", "--force", "duration=10ba"});
  EXPECT_THAT(line.inputs.overrides, ElementsAre("optim.lr=1e-4", "run.dir=/tmp/run", "duration=10ba"));
  EXPECT_EQ(line.get("out"), "folder");
  EXPECT_TRUE(line.has("force"));
  EXPECT_FALSE(line.has("prompt"));
  EXPECT_THAT(line.paths, IsEmpty());
}

TEST(CommandLine, ConfigFilesKeepTheirOrderInEverySpelling) {
  const auto line = parse({"--config", "a.yaml", "config=b.yaml", "--config=c.yaml", "x.y=1", "config=d.yaml"});
  EXPECT_THAT(files_of(line), ElementsAre("a.yaml", "b.yaml", "c.yaml", "d.yaml"));
  EXPECT_THAT(line.inputs.overrides, ElementsAre("x.y=1"));
}

TEST(CommandLine, ManyPromptsAfterOneOptionOrSeveral) {
  const auto line = parse({"--prompt", "a red fox", "two cats", "--out=x", "--prompt", "third", "seed=3"});
  EXPECT_THAT(line.options.at("prompt"), ElementsAre("a red fox", "two cats", "third"));
  EXPECT_EQ(line.get("out"), "x");
  EXPECT_THAT(line.inputs.overrides, ElementsAre("seed=3"));
}

TEST(CommandLine, PromptsAreTextWhateverTheyLookLike) {
  const auto line = parse({"--prompt", "an equation e=mc2", "E=mc2", "", "50% = half"});
  EXPECT_THAT(line.options.at("prompt"), ElementsAre("an equation e=mc2", "E=mc2", "", "50% = half"));
}

TEST(CommandLine, AValueMayLookLikeAnOverride) {
  const auto line = parse({"--out", "runs/lr.x=3", "--config", "sweep.lr=3.yaml"});
  EXPECT_EQ(line.get("out"), "runs/lr.x=3");
  EXPECT_THAT(files_of(line), ElementsAre("sweep.lr=3.yaml"));
  EXPECT_THAT(line.inputs.overrides, IsEmpty());
}

TEST(CommandLine, HydrasSignsReachTheConfiguration) {
  EXPECT_THAT(parse({"+data.train.filters.width=>5", "~optim.clip", "~optim.lr=1"}).inputs.overrides,
              ElementsAre("+data.train.filters.width=>5", "~optim.clip", "~optim.lr=1"));
}

TEST(CommandLine, PathsOnlyWhereTheCommandTakesThem) {
  const auto line = parse({"folder/a.tar", "b.c=1", "runs/lr.x=3/model"}, /*takes_paths=*/true);
  EXPECT_THAT(line.paths, ElementsAre("folder/a.tar", "runs/lr.x=3/model"));
  EXPECT_THAT(line.inputs.overrides, ElementsAre("b.c=1"));
  EXPECT_THAT(usage_error({"folder/a.tar"}), HasSubstr("folder/a.tar"));
}

TEST(CommandLine, WhatAllCommandsHave) {
  EXPECT_EQ(parse({}).print_config, std::nullopt);
  EXPECT_EQ(parse({"--print-config"}).print_config, "yaml");
  EXPECT_EQ(parse({"--print-config=json"}).print_config, "json");
  EXPECT_TRUE(parse({"--dry-run"}).dry_run);
  EXPECT_EQ(parse({"--help"}).help, "");
  EXPECT_EQ(parse({"-h"}).help, "");
  EXPECT_EQ(parse({"--help", "optim"}).help, "optim");
  EXPECT_EQ(parse({"--help=optim"}).help, "optim");
  EXPECT_EQ(parse({"--print-config", "a.b=1"}).inputs.overrides.size(), 1u);
}

TEST(CommandLine, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(usage_error({"--frobnicate"}), HasSubstr("--frobnicate"));
  EXPECT_THAT(usage_error({"--frobnicate=3"}), HasSubstr("--frobnicate"));
  EXPECT_THAT(usage_error({"--pro", "x"}), HasSubstr("--pro"));  // no guessing of cut options
  EXPECT_THAT(usage_error({"--out"}), HasSubstr("out"));
  EXPECT_THAT(usage_error({"--force=yes"}), HasSubstr("force"));
  EXPECT_THAT(usage_error({"--print-config=xml"}), HasSubstr("xml"));
  EXPECT_THAT(usage_error({"--config"}), HasSubstr("config"));
}

TEST(CommandLine, AMissingOptionIsNamed) {
  auto line = parse({});
  line.command = "generate";
  EXPECT_EQ(line.find("out"), std::nullopt);
  try {
    line.get("out");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_STREQ(error.what(), "generate needs --out");
  }
}

TEST(CommandLine, KnowsOverrides) {
  for (const char* text : {"a.b=1", "a.b=", "a.b.c=[1, 2]", "data.sources[0].path=x", "seed=1", "duration=3ep",
                           "a.b=c=d", "a=1", "e=mc2", "+a.b=1", "++a.b=1", "~a.b", "~a.b=1", "~a"})
    EXPECT_TRUE(is_override(text)) << text;
  for (const char* text : {"", "=", "=1", ".b=1", "a.=1", "-a=1", "a b.c=1", "a.b", "a/b=1", "+", "+a", "+=1", "+1=2",
                           "~", "~=1", "~/a=1", "~3.5", "~+a=1"})
    EXPECT_FALSE(is_override(text)) << text;
}

// What a shell makes of data.train.path=/d/{0..2}.tar.
TEST(CommandLine, RefusesWhatTheShellHasMadeOfBraces) {
  try {
    parse({"data.train.path=/d/0.tar", "data.train.path=/d/1.tar", "data.train.path=/d/2.tar"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    EXPECT_THAT(error.what(), HasSubstr("data.train.path=... is given several times in a row"));
    EXPECT_THAT(error.hint(), HasSubstr("'data.train.path=FOLDER/{00000..00999}.tar'"));
  }
  EXPECT_THROW(parse({"run.dir=x", "a.path=1", "a.path=2", "a.path=3", "threads=1"}), Error);
  testing::internal::CaptureStderr();
  EXPECT_EQ(parse({"data.train.path=/d/0.tar", "data.train.path=/d/1.tar"}).inputs.overrides.size(), 2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("data.train.path=... is given twice in a row, and the last one counts"));
  EXPECT_EQ(parse({"optim.lr=1", "optim.lr=2"}).inputs.overrides.size(), 2) << "a script's default, replaced";
  EXPECT_EQ(parse({"data.train.path=a", "seed=1", "data.train.path=b"}).inputs.overrides.size(), 3);
}

TEST(CommandLine, NamesTheOptionThatWasMeant) {
  const auto message = [](const std::string& argument) -> std::string {
    try {
      parse_command_line({argument}, options, false);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message("--otu=x"), HasSubstr("unknown option --otu=x; did you mean '--out'?"));
  EXPECT_THAT(message("--dryrun"), HasSubstr("did you mean '--dry-run'?"));
  EXPECT_THAT(message("--print-confg=json"), HasSubstr("did you mean '--print-config'?"));
  EXPECT_THAT(message("--quite-another-thing"), testing::Not(HasSubstr("did you mean")));
}

}  // namespace
}  // namespace millrace
