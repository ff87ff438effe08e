#include "config/config_fixture.h"

namespace millrace::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Case {
  const char* name;
  std::vector<std::string> files, overrides;
  std::vector<std::string> says;  // parts of the one problem
};

class ConfigError : public ConfigTest, public testing::WithParamInterface<Case> {};

TEST_P(ConfigError, IsOneProblemThatNamesPlaceKeyAndValue) {
  const config::Report report = load(GetParam().files, GetParam().overrides);
  ASSERT_EQ(report.problems().size(), 1u) << testing::PrintToString(report.problems());
  for (const std::string& part : GetParam().says) EXPECT_THAT(report.problems()[0], HasSubstr(part));
}

const Case cases[] = {
    {"misspelt_key", {"optim:\n  lrr: 3"}, {}, {"a.yaml:2", "optim.lrr", "unknown key", "did you mean 'optim.lr'"}},
    {"misspelt_section", {"optmi: {lr: 3}"}, {}, {"a.yaml:1", "optmi", "did you mean 'optim'"}},
    {"misplaced_key", {"lr: 3"}, {}, {"a.yaml:1", "lr", "did you mean 'optim.lr'"}},
    {"unknown_key", {"xyzzy: 3"}, {}, {"a.yaml:1: xyzzy: unknown key"}},
    {"dotted_key", {"optim.lr: 1"}, {}, {"a.yaml:1: optim.lr: unknown key", "write optim: {lr: ...}"}},
    {"dotted_key_below",
     {"data: {train.limit: 1}"},
     {},
     {"data.train.limit: unknown key", "write train: {limit: ...}"}},
    {"dotted_key_of_a_map",
     {"data.train.filters.a.b: x"},
     {},
     {"unknown key", "write data: {train: {filters: {a.b: ...}}}"}},
    {"dotted_key_of_another", {"generate.a.b: 1"}, {}, {"unknown key", "write generate: {a: {b: ...}}"}},
    {"dotted_key_misspelt", {"optim.lrr: 1"}, {}, {"a.yaml:1: optim.lrr: unknown key"}},
    {"misspelt_override", {}, {"data.shufle_buffer=3"}, {"override", "did you mean 'data.shuffle_buffer'"}},
    {"renamed_key", {"data:\n  lanes: 3"}, {}, {"a.yaml:2: data.lanes: was replaced by data.stripes (units of order)"}},
    {"renamed_override", {}, {"data.lanes=3"}, {"override: data.lanes: was replaced by data.stripes"}},
    {"misspelt_in_optional_section",
     {},
     {"data.validation={pth: a, path: b}"},
     {"data.validation.pth", "'data.validation.path'"}},
    {"duplicate_key", {"optim:\n  lr: 3\n  lr: 3"}, {}, {"a.yaml:3", "duplicate key 'lr'", "a.yaml:2"}},
    {"duplicate_section", {"optim: {}\noptim: {}"}, {}, {"a.yaml:2", "duplicate key 'optim'"}},
    {"text_for_a_number", {"optim:\n  lr: fast"}, {}, {"a.yaml:2", "optim.lr", "expected number", "'fast'"}},
    {"secret_of_many_letters",
     {},
     {"optim.lr=s3://user:" + std::string(100, 'x') + "@host"},
     {"optim.lr", "expected number", "'s3://***@host'"}},
    {"number_with_rest", {}, {"optim.lr=1e-4x"}, {"override", "optim.lr", "'1e-4x'"}},
    {"not_a_number", {"optim: {lr: .nan}"}, {}, {"optim.lr", "'.nan'"}},
    {"infinite", {"optim: {lr: 1e999}"}, {}, {"optim.lr", "'1e999'"}},
    {"fraction_for_whole", {}, {"data.shuffle_buffer=2.5"}, {"data.shuffle_buffer", "whole number", "'2.5'"}},
    {"octal_number_or_not", {}, {"optim.lr=010"}, {"optim.lr", "expected number", "'010'"}},
    {"octal_negative_or_not", {}, {"optim.lr=-010"}, {"optim.lr", "expected number", "'-010'"}},
    {"octal_or_not", {}, {"data.shuffle_buffer=010"}, {"whole number", "'010'"}},
    {"too_large", {}, {"data.shuffle_buffer=3000000000"}, {"out of range", "2147483647"}},
    {"negative_seed", {}, {"run.seed=-1"}, {"run.seed", "'-1'", "out of range"}},
    {"below_bound", {"optim: {lr: -1}"}, {}, {"optim.lr", "number >= 0", "'-1'"}},
    {"at_open_bound", {"optim: {clip: 0}"}, {}, {"optim.clip", "> 0", "'0'"}},
    {"bound_inside_list", {"optim: {betas: [0.9, 1]}"}, {}, {"optim.betas", "< 1"}},
    {"wrong_length", {"optim: {betas: [0.9]}"}, {}, {"optim.betas", "list of 2", "a list of 1: '0.9'"}},
    {"bound_on_auto", {"data: {stripes: 0}"}, {}, {"data.stripes", "whole number or auto >= 1"}},
    {"not_a_boolean", {"data: {allow_pipes: 1}"}, {}, {"data.allow_pipes", "true or false", "'1'"}},
    {"unknown_word", {"run: {policy: crop}"}, {}, {"run.policy", "resize_then_crop | crop_then_resize", "'crop'"}},
    {"unknown_text_word",
     {"data: {train: {type: tfrecord}}"},
     {},
     {"data.train.type", "webdataset | parquet", "'tfrecord'"}},
    {"unknown_unit", {"duration: 5 parsecs"}, {}, {"a.yaml:1", "duration", "'5 parsecs'", "550000 steps"}},
    {"bad_size", {"run: {room: 5 apples}"}, {}, {"run.room", "'5 apples'", "32 MiB"}},
    {"null_for_a_number", {"optim: {lr: null}"}, {}, {"optim.lr", "expected number", "null"}},
    {"null_for_text", {"data: {train: {type: null}}"}, {}, {"data.train.type", "null"}},
    {"map_for_a_value", {"optim: {lr: {a: 1}}"}, {}, {"optim.lr", "a map"}},
    {"list_for_a_value", {"optim: {lr: [1]}"}, {}, {"optim.lr", "a list of 1"}},
    {"value_for_a_section", {"optim: 3"}, {}, {"a.yaml:1", "optim", "expected a section", "'3'"}},
    {"list_in_free_map", {"data: {train: {filters: {a: [1]}}}"}, {}, {"data.train.filters", "'a'", "a list"}},
    {"empty_override_in_free_map",
     {},
     {"data.train.filters.width="},
     {"data.train.filters.width has no value", "quotes", "'data.train.filters.width=>=3'"}},
    {"must_be_set", {"optim:\n  lr: ???"}, {}, {"a.yaml:2", "optim.lr", "must be set", "learning rate"}},
    {"required_list", {}, {"data.validation={}"}, {"data.validation.path", "must be set"}},
    {"not_yaml", {"optim:\n  lr: [1"}, {}, {"a.yaml:", "not YAML"}},
    {"tab", {"optim:\n\tlr: 1"}, {}, {"a.yaml:2", "not YAML"}},
    {"a_list_on_top", {"[1, 2]"}, {}, {"a.yaml:1", "expected keys and values"}},
    {"unquoted_not_equal",
     {"data:\n  train:\n    filters: {NSFW: != NSFW}"},
     {},
     {"a.yaml:3: '!=' is a YAML tag", "quotes"}},
    {"unquoted_not_equal_override", {}, {"data.train.filters={NSFW: != NSFW}"}, {"override: '!=' is a YAML tag"}},
    {"tagged_list", {"optim: {betas: !tuple [0.9, 0.99]}"}, {}, {"a.yaml:1: '!tuple' is a YAML tag"}},
    {"tagged_map", {"optim: !set {}"}, {}, {"a.yaml:1: '!set' is a YAML tag"}},
    {"two_documents", {"optim: {}\n---\noptim: {}"}, {}, {"a.yaml", "more than one YAML document"}},
    {"key_is_a_list", {"? [a, b]\n: 3"}, {}, {"a.yaml:1", "a key must be a word"}},
    {"merge_of_a_value", {"optim:\n  <<: 3\n  lr: 1"}, {}, {"a.yaml:2: '<<' takes a map or a list of maps, not '3'"}},
    {"merge_of_values", {"optim: {<<: [{lr: 1}, 3]}"}, {}, {"a.yaml:1: '<<' takes a map", "a list of 2"}},
    {"two_merges", {"optim:\n  <<: {lr: 1}\n  <<: {clip: 1}"}, {}, {"a.yaml:3: duplicate key '<<', first at "}},
    {"misspelt_in_merge", {"optim: {<<: {lrr: 1}}"}, {}, {"a.yaml:1: optim.lrr", "did you mean 'optim.lr'"}},
    {"quoted_merge", {"optim: {'<<': {lr: 1}}"}, {}, {"optim.<<: unknown key"}},
    {"alias_inside_itself", {"run: {note: &a [*a]}"}, {"run.note=x"}, {"a.yaml:1", "alias"}},
    {"no_equals", {}, {"optim.lr"}, {"override", "'optim.lr'", "KEY=VALUE"}},
    {"no_key", {}, {"=3"}, {"override", "KEY=VALUE"}},
    {"deletion", {}, {"~optim.lr"}, {"cannot be deleted"}},
    {"list_element", {}, {"optim.betas[0]=3"}, {"optim.betas", "as a whole"}},
    {"bad_yaml_override", {}, {"data.train={a"}, {"override", "not YAML"}},
    {"cycle_of_one", {"optim: {lr: '${optim.lr}'}"}, {}, {"optim.lr", "refers to itself"}},
    {"cycle",
     {"optim:\n  lr: ${.clip}\n  clip: ${.lr}"},
     {},
     {"refers to itself", "optim.lr -> optim.clip -> optim.lr"}},
    {"cycle_through_parent", {"data: {train: {limit: '${data.train}'}}"}, {}, {"data.train.limit", "refers to itself"}},
    {"merged_cycle",
     {"data:\n  validation: ${data.validation}"},
     {"data.validation.limit=3"},
     {"a.yaml:2", "data.validation", "refers to itself"}},
    {"merged_into_itself",
     {"data: {validation: '${data.train}'}"},
     {"data.validation.limit=${data.validation}"},
     {"override: data.validation.limit", "refers to itself"}},
    {"merged_with_nothing",
     {"data:\n  validation: ${data.tran}"},
     {"data.validation.path=a"},
     {"a.yaml:2", "data.validation", "there is no key 'data.tran'"}},
    {"merged_wrong_value",
     {"data: {validation: '${data.train}'}"},
     {"data.validation.limit=x"},
     {"override: data.validation.limit", "'x'"}},
    {"reference_to_nothing", {"optim: {lr: '${optim.x}'}"}, {}, {"optim.lr", "${optim.x}", "there is no key"}},
    {"reference_above_the_top", {"optim: {lr: '${....x}'}"}, {}, {"optim.lr", "beyond the top"}},
    {"reference_to_missing",
     {"optim: {lr: '${generate.x}'}\ngenerate: {x: ???}"},
     {},
     {"optim.lr", "generate.x must be set first"}},
    {"open_brace", {"run: {note: 'a ${optim.lr'}"}, {}, {"run.note", "closing brace"}},
    {"unknown_resolver", {"run: {note: '${now:%H}'}"}, {}, {"run.note", "unknown resolver 'now'", "oc.env"}},
    {"variable_not_set",
     {"run: {note: '${oc.env:MILLRACE_NO_SUCH}'}"},
     {},
     {"run.note", "MILLRACE_NO_SUCH", "not set"}},
    {"section_in_text", {"run: {note: 'a ${optim}'}"}, {}, {"run.note", "a map"}},
    {"decode_of_nonsense", {"run: {note: '${oc.decode:\"[1\"}'}"}, {}, {"run.note", "oc.decode"}},
};

INSTANTIATE_TEST_SUITE_P(Table, ConfigError, testing::ValuesIn(cases),
                         [](const auto& info) { return std::string(info.param.name); });

class ConfigErrors : public ConfigTest {};

// Paths of archives have ${NAME} of their own, from WDS_NAME.
TEST_F(ConfigErrors, TellHowAVariableOfPathsIsWritten) {
  ::setenv("WDS_MILLRACE_DISK", "/disk", 1);
  EXPECT_THAT(load({}, {"run.note=${MILLRACE_DISK}/a.tar"}).problems(),
              ElementsAre(HasSubstr("there is no key 'MILLRACE_DISK'; for the variable WDS_MILLRACE_DISK in a path of "
                                    "archives, write \\${MILLRACE_DISK}")));
  EXPECT_THAT(load({}, {"run.note=${MILLRACE_TAPE}/a.tar"}).problems(), ElementsAre(Not(HasSubstr("WDS_"))));
}

TEST_F(ConfigErrors, AreThrownTogether) {
  Root root;
  const auto file = dir_.write("a.yaml", "run: {note: 'é', dir: ???}\n\noptim:\n  lr: x\n  lrr: 1\n  clip: 2\n");
  config::Report report = config::load(root, {.files = {file}, .overrides = {"duration=soon"}});
  report.problem("optim.warmup", "longer than the run");
  report.problem("optim.clip", "checked by hand");
  try {
    report.throw_if_problems();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage);
    const std::string text = error.what();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7) << text;
    EXPECT_THAT(text,
                AllOf(HasSubstr("7 problems"), HasSubstr("a.yaml:1: run.dir: must be set (folder of the run)"),
                      HasSubstr("\n  data.train.path: must be set"), HasSubstr("a.yaml:4: optim.lr: expected number"),
                      HasSubstr("a.yaml:5: optim.lrr"), HasSubstr("override: duration: 'soon'"),
                      HasSubstr("\n  optim.warmup: longer"), HasSubstr("a.yaml:6: optim.clip: checked by hand")));
  }
}

TEST_F(ConfigErrors, AMissingFileIsAnErrorOfInput) {
  Root root;
  try {
    config::load(root, {.files = {"/no/such.yaml"}, .overrides = {}});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_THAT(error.what(), HasSubstr("/no/such.yaml"));
  }
}

TEST_F(ConfigErrors, GrowthOfAliasesIsBounded) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string alias = fmt::format("*a{}", i - 1);
    text += fmt::format("a{0}: &a{0} [{1}, {1}, {1}, {1}, {1}, {1}, {1}, {1}]\n", i, alias);
  }
  EXPECT_THAT(load({text}).problems(), testing::Contains(HasSubstr("more than 100000 values")));
}

TEST_F(ConfigErrors, GrowthOfAliasedTextIsBounded) {
  std::string text = "generate:\n  a: &a " + std::string(100'000, 'x') + "\n";
  for (int i = 0; i < 1000; ++i) text += fmt::format("  a{}: *a\n", i);
  EXPECT_THAT(load({text}).problems(), testing::Contains(HasSubstr("more than 16 MiB of text")));
  std::string nested = std::string(100'000, 'x');  // in anchors inside each other
  for (int i = 0; i < 200; ++i) nested = fmt::format("&a{} [{}]", i, nested);
  EXPECT_THAT(load({"generate: " + nested}).problems(), testing::Contains(HasSubstr("more than 16 MiB of text")));
}

TEST_F(ConfigErrors, GrowthOfReferencesIsBounded) {
  std::string text = "generate:\n  a0: xxxxxxxx\n";
  for (int i = 1; i < 40; ++i) text += fmt::format("  a{}: ${{.a{}}}${{.a{}}}\n", i, i - 1, i - 1);
  EXPECT_THAT(load({text}).problems(), testing::Contains(HasSubstr("more than a MiB")));
}

TEST_F(ConfigErrors, ChainsOfReferencesAreBounded) {
  std::string text = "generate:\n";
  for (int i = 0; i < 5000; ++i) text += fmt::format("  a{}: ${{.a{}}}\n", i, i + 1);
  EXPECT_THAT(load({text}).problems(), testing::Contains(HasSubstr("more than 64 references")));
}

}  // namespace
}  // namespace millrace::test
