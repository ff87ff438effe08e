// data.validation has the keys of data.train: messages name the one that is wrong.
#include <gmock/gmock.h>

#include <functional>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/dataset/filter.h"
#include "millrace/dataset/source.h"
#include "millrace/latents/latent_table.h"
#include "millrace/loader/sources.h"
#include "temp_archives.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Type = SourceConfig::Type;

struct Root {
  DataConfig data;
  void describe(config::Section& section) { section.section("data", data, ""); }
};

TEST(SourceSectionName, ComesFromTheConfiguration) {
  Root root;
  const auto report =
      config::load(root, {.files = {}, .overrides = {"data.train.path=a.tar", "data.validation.path=b.tar"}});
  ASSERT_THAT(report.problems(), IsEmpty());
  EXPECT_EQ(root.data.train.section, "data.train");
  EXPECT_EQ(root.data.validation->section, "data.validation");
  const SourceConfig copy = *root.data.validation;
  EXPECT_EQ(copy.section, "data.validation");
}

// What a run would pass over in silence.
TEST(SourceKeys, WithoutUseAreRefused) {
  bool needs_captions = true;
  const auto problems_with = [&](const std::vector<std::string>& settings) {
    Root root;
    root.data.train.needs_captions = needs_captions;
    auto overrides = settings;
    overrides.insert(overrides.begin(), "data.train.path=a");
    auto report = config::load(root, {.files = {}, .overrides = overrides});
    EXPECT_THAT(report.problems(), IsEmpty());
    root.data.check(report);
    std::string text;
    for (const auto& problem : report.problems()) text += problem + "\n";
    return text;
  };
  const std::string table = "data.train.columns={image: i, caption: c, key: k}";
  EXPECT_EQ(problems_with({"data.train.columns={image: png, caption: json.c}"}), "");
  EXPECT_EQ(problems_with({"data.train.type=parquet", table}), "");
  EXPECT_EQ(problems_with({"data.train.type=class", "data.train.idx_to_prompt=p", "data.train.columns.cls=c"}), "");
  EXPECT_THAT(problems_with({table}), HasSubstr("columns.key"));
  EXPECT_THAT(problems_with({"data.train.idx_to_prompt=p.json"}), HasSubstr("idx_to_prompt"));
  EXPECT_THAT(problems_with({"data.train.type=csv", "data.train.columns.cls=c"}), HasSubstr("columns.cls"));
  EXPECT_EQ(problems_with({"data.train.type=synthetic"}), "");  // to try the rest of a configuration
  EXPECT_THAT(problems_with({"data.train.type=synthetic", "data.train.filters.a=1"}), HasSubstr("filters"));
  EXPECT_THAT(problems_with({"data.train.type=class"}), HasSubstr("idx_to_prompt: must be set"));
  needs_captions = false;
  EXPECT_EQ(problems_with({"data.train.type=class"}), "");
}

struct Mistake {
  const char* name;
  std::function<void(SourceConfig&, const test::TempFolder&)> make;
  const char* says;  // of the section
};

void read(const SourceConfig& source) {
  const Manifest manifest = make_manifest(source, /*allow_pipes=*/false);
  const Filter filter(source.filters, source.section);
  if (source.type == Type::latents) return check_latent_tables(source, manifest, {});
  make_source(source, manifest, 64)->open({0, 0, 1}, 0)->next();
}

class SourceSection : public testing::TestWithParam<Mistake> {};

TEST_P(SourceSection, IsNamedByErrors) {
  const test::TempFolder folder;
  folder.write_tar("a.tar", {test::sample("0", "x", "t")});
  folder.write("a.csv", "path,caption\nx.jpg,t\n");
  folder.write("list.json", "3");
  folder.write("number.json", "{\"0\": 3}");
  fs::create_directories(folder.path("empty"));
  SourceConfig source;
  source.section = "data.validation";
  source.path = {folder.path("a.tar")};
  GetParam().make(source, folder);
  try {
    read(source);
    FAIL() << "no Error was thrown";
  } catch (const Error& error) {
    const std::string text = error.what() + ("\n" + error.hint());
    EXPECT_THAT(text, HasSubstr(std::string("data.validation") + GetParam().says));
    EXPECT_THAT(text, Not(HasSubstr("data.train")));
  }
}

const std::string golden_sources = std::string(MILLRACE_TEST_DATA) + "/sources/";

INSTANTIATE_TEST_SUITE_P(
    All, SourceSection,
    testing::Values(
        Mistake{"no_path", [](auto& c, auto&) { c.path = {}; }, ".path is not set"},
        Mistake{"pipe", [](auto& c, auto&) { c.path = {"pipe:cat x.tar"}; }, ".path holds a pipe"},
        Mistake{"twice", [](auto& c, auto&) { c.path.push_back(c.path[0]); }, ".path holds "},
        Mistake{"twins",
                [](auto& c, auto& f) {
                  f.write("a.tar.gz", "");
                  c.path.push_back(f.path("a.tar.gz"));
                },
                ".path holds two archives of one name"},
        Mistake{"scheme", [](auto& c, auto&) { c.path = {"gs://bucket/a.tar"}; }, ".path: gs://bucket/a.tar: no such"},
        Mistake{"other_kind", [](auto& c, auto& f) { c.path = {f.path("a.csv")}; }, ".type=webdataset does not go"},
        Mistake{"list_far_away", [](auto& c, auto&) { c.type = Type::csv, c.path = {"http://h/a.csv"}; },
                ".path: http://h/a.csv cannot be read"},
        Mistake{"limit_of_a_stream", [](auto& c, auto&) { c.path = {"http://h/a.tar"}, c.limit = 3; },
                ".limit has to count"},
        Mistake{"column",
                [](auto& c, auto& f) { c.type = Type::csv, c.path = {f.path("a.csv")}, c.columns.caption = "titel"; },
                ".columns.caption = titel"},
        Mistake{"usual_columns",
                [](auto& c, auto& f) {
                  f.write("b.csv", "a,b\n1,2\n");
                  c.type = Type::csv, c.path = {f.path("b.csv")};
                },
                ".columns.image"},
        Mistake{"filter",
                [](auto& c, auto&) {
                  c.filters = {{"width", ">>3"}};
                },
                ".filters.width"},
        Mistake{"no_prompts", [](auto& c, auto&) { c.type = Type::class_labels; }, ".idx_to_prompt must be set"},
        Mistake{"prompts_of_no_class",
                [](auto& c, auto& f) { c.type = Type::class_labels, c.idx_to_prompt = f.path("list.json"); },
                ".idx_to_prompt"},
        Mistake{"prompt_that_is_no_text",
                [](auto& c, auto& f) { c.type = Type::class_labels, c.idx_to_prompt = f.path("number.json"); },
                ".idx_to_prompt"},
        Mistake{"no_cache", [](auto& c, auto& f) { c.type = Type::latents, c.path = {f.path("empty")}; }, ".path"},
        Mistake{"two_caches",
                [](auto& c, auto& f) {
                  c.type = Type::latents, c.path = {f.path("empty"), f.path("x")};
                },
                ".type=latents reads one cache"},
        Mistake{"latent_column",
                [](auto& c, auto&) {
                  c.type = Type::latents, c.path = {golden_sources + "00007.parquet"}, c.columns.image = "latents";
                },
                ".columns.image"},
        Mistake{"latent_filter",
                [](auto& c, auto&) {
                  c.type = Type::latents, c.path = {golden_sources + "00007.parquet"}, c.filters = {{"width", "3"}};
                },
                ": filters"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace millrace
