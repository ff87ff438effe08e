#include <gmock/gmock.h>

#include <cstdlib>

#include "io/tar_bytes.h"
#include "millrace/core/error.h"
#include "millrace/dataset/source.h"
#include "millrace/loader/sources.h"
#include "millrace/loader/stripe.h"
#include "rows_of.h"
#include "temp_archives.h"

namespace millrace {
namespace {

using test::TempFolder;
using testing::ElementsAre;

using test::rows_of;

SourceConfig config_of(const std::string& path, std::optional<std::int64_t> limit = {}) {
  SourceConfig config;
  config.path = {path};
  config.limit = limit;
  return config;
}

Manifest manifest_of(const std::string& path, std::optional<std::int64_t> limit = {}) {
  return test::manifest_of(config_of(path, limit));
}

std::vector<std::string> rows_of(const Manifest& manifest) {
  return rows_of(*make_source({}, manifest, 64), {0, 0, 1});
}

TEST(WebDataset, RulesOfARow) {
  TempFolder folder;
  folder.write_tar("a.tar", {{.key = "both", .fields = {{"png", "P"}, {"jpg", "J"}, {"txt", "two images"}}},
                             {.key = "no-image", .fields = {{"txt", "t"}, {"json", "{}"}}},
                             {.key = "no-caption", .fields = {{"webp", "W"}}},
                             {.key = "nothing", .fields = {{"json", "{}"}}},
                             test::sample("empty", "J", ""),
                             test::sample("bad-utf8", "J", "caf\xe9 \xf0\x9f\x98"),
                             test::sample("dir/key", "J", "\xc3\xa9")});
  const Manifest manifest = manifest_of(folder.path("a.tar"));
  EXPECT_THAT(rows_of(manifest),
              ElementsAre("a/both=two images", "a/no-image:missing_image", "a/no-caption:missing_caption",
                          "a/nothing:missing_image", "a/empty=", "a/bad-utf8=caf\uFFFD \uFFFD", "a/dir/key=\u00e9"));
  const auto reader = make_source({}, manifest, 64)->open({0, 0, 1}, 0);
  EXPECT_EQ(std::get<RawSample>(*reader->next()).image, "J");  // jpg comes before png
}

TEST(WebDataset, ColumnsNameOtherMembers) {
  TempFolder folder;
  folder.write_tar("a.tar",
                   {{.key = "0",
                     .fields = {{"jpg", "J"},
                                {"png", "P"},
                                {"txt", "short"},
                                {"long.txt", "long"},
                                {"json", R"({"recaption": "by a model", "n": NaN})"}}},
                    {.key = "1", .fields = {{"jpg", "J"}, {"txt", "short"}, {"json", R"({"recaption": null})"}}},
                    {.key = "2", .fields = {{"png", "P"}, {"txt", "short"}, {"json", "no JSON"}}}});
  const auto rows_with = [&](auto SourceColumns::*column, const std::string& member) {
    auto config = config_of(folder.path("a.tar"));
    config.columns.*column = member;
    const Manifest manifest = test::manifest_of(config);
    const auto source = make_source(config, manifest, 64);
    const auto rows = rows_of(*source, {0, 0, 1});
    EXPECT_THAT(rows_of(*source, {0, 1, 2}), ElementsAre(rows[1]));  // by the index
    return rows;
  };
  EXPECT_THAT(rows_with(&SourceColumns::caption, "long.txt"),
              ElementsAre("a/0=long", "a/1:missing_caption", "a/2:missing_caption"));
  EXPECT_THAT(rows_with(&SourceColumns::caption, "json.recaption"),
              ElementsAre("a/0=by a model", "a/1:missing_caption", "a/2:missing_caption"));
  EXPECT_THAT(rows_with(&SourceColumns::image, "png"), ElementsAre("a/0=short", "a/1:missing_image", "a/2=short"));
}

// As train-autoencoder reads them: ids are those of the rows, captioned or not.
TEST(WebDataset, ImagesAloneNeedNoCaption) {
  TempFolder folder;
  folder.write_tar("a.tar", {{.key = "0", .fields = {{"jpg", "J"}}},
                             {.key = "1", .fields = {{"png", "P"}, {"txt", "t"}, {"cls", "7"}}},
                             {.key = "2", .fields = {{"txt", "t"}}}});
  for (const auto type : {SourceConfig::Type::webdataset, SourceConfig::Type::class_labels}) {
    auto config = config_of(folder.path("a.tar"));
    config.type = type;
    config.needs_captions = false;
    const Manifest manifest = test::manifest_of(config);
    const auto source = make_source(config, manifest, 64);
    EXPECT_THAT(rows_of(*source, {0, 0, 1}), ElementsAre("a/0=", "a/1=", "a/2:missing_image"));
    EXPECT_THAT(rows_of(*source, {0, 1, 2}), ElementsAre("a/1="));  // by the index
  }
}

TEST(WebDataset, SeveralCaptionsAreAllThatAreThere) {
  TempFolder folder;
  folder.write_tar("a.tar", {{.key = "0", .fields = {{"jpg", "J"}, {"txt", "alt"}, {"json", R"({"c": "by a model"})"}}},
                             {.key = "1", .fields = {{"jpg", "J"}, {"json", R"({"c": ["one", "", "two", 3, null]})"}}},
                             {.key = "2", .fields = {{"jpg", "J"}, {"txt", ""}, {"json", R"({"c": "only"})"}}},
                             {.key = "3", .fields = {{"jpg", "J"}, {"txt", ""}, {"json", R"({"c": []})"}}},
                             {.key = "4", .fields = {{"jpg", "J"}, {"json", R"({"d": "no"})"}}},
                             {.key = "5", .fields = {{"jpg", "J"}, {"txt", std::string(2 << 20, 'x')}}}});
  auto config = config_of(folder.path("a.tar"));
  config.columns.caption = std::vector<std::string>{"txt", "json.c"};
  EXPECT_THAT(rows_of(config), ElementsAre("a/0=alt|by a model", "a/1=one|two|3", "a/2=only",
                                           "a/3=", "a/4:missing_caption", "a/5:too_large"));
}

TEST(WebDataset, LongMetadataAreNotLookedInto) {
  TempFolder folder;
  const std::string padding(1 << 20, 'x');
  folder.write_tar("a.tar",
                   {{.key = "0", .fields = {{"jpg", "J"}, {"json", R"({"c": "short"})"}}},
                    {.key = "1", .fields = {{"jpg", "J"}, {"json", R"({"c": "long", "d": ")" + padding + "\"}"}}},
                    {.key = "2", .fields = {{"json", R"({"c": "long", "d": ")" + padding + "\"}"}}}});
  auto config = config_of(folder.path("a.tar"));
  config.columns.caption = "json.c";
  EXPECT_THAT(rows_of(config), ElementsAre("a/0=short", "a/1:bad_json", "a/2:bad_json"));
  config.columns = {};
  EXPECT_THAT(rows_of(config), ElementsAre("a/0:missing_caption", "a/1:missing_caption", "a/2:missing_image"));
}

TEST(WebDataset, ARowThatLacksSomethingTellsWhatItHas) {
  TempFolder folder;
  folder.write_tar("a.tar", {{.key = "0", .fields = {{"jpg", "J"}, {"json", "{}"}}},
                             {.key = "1", .fields = {{"gif", "G"}, {"txt", "t"}}}});
  const Manifest manifest = manifest_of(folder.path("a.tar"));
  const auto source = make_source({}, manifest, 64);
  const auto reader = source->open({0, 0, 1}, 0);
  EXPECT_EQ(std::get<Rejected>(*reader->next()).detail, "no txt; it has jpg, json");
  EXPECT_EQ(std::get<Rejected>(*reader->next()).detail, "none of jpg, png, jpeg, webp; it has gif, txt");
}

// As macOS's tar writes a folder: before each file one of its attributes.
TEST(WebDataset, AttributesOfMacOSAreNoSamples) {
  TempFolder folder;
  std::string tar;
  for (const std::string key : {"0", "1", "2"})
    for (const std::string field : {"jpg", "txt"})
      tar +=
          test::tar_member("d/._" + key + "." + field, "attributes") + test::tar_member("d/" + key + "." + field, key);
  folder.write("a.tar", tar + test::tar_end());
  const Manifest manifest = manifest_of(folder.path("a.tar"));
  const auto source = make_source({}, manifest, 64);
  EXPECT_THAT(rows_of(*source, {0, 0, 1}), ElementsAre("a/d/0=0", "a/d/1=1", "a/d/2=2"));
  EXPECT_THAT(rows_of(*source, {0, 0, 2}), ElementsAre("a/d/0=0", "a/d/2=2")) << "by the index";
  EXPECT_EQ(manifest_of(folder.path("a.tar"), 5).archives[0].rows, 3u);
}

TEST(WebDataset, AWholeNumberInJsonIsItsNameWithoutAPoint) {
  TempFolder folder;
  folder.write("prompts.json", R"({"7": "a hen", "0.5": "half a hen"})");
  std::vector<TarSample> samples;
  for (const char* label : {"7", "7.0", "\"7\"", "0.5", "7.5", "NaN"})
    samples.push_back({.key = std::to_string(samples.size()),
                       .fields = {{"jpg", "J"}, {"json", fmt::format(R"({{"label": {}}})", label)}}});
  folder.write_tar("a.tar", samples);
  auto config = config_of(folder.path("a.tar"));
  config.type = SourceConfig::Type::class_labels;
  config.idx_to_prompt = folder.path("prompts.json");
  config.columns.cls = "json.label";
  EXPECT_THAT(rows_of(config), ElementsAre("a/0=a hen", "a/1=a hen", "a/2=a hen", "a/3=half a hen",
                                           "a/4:missing_caption", "a/5:missing_caption"));
}

// A rejected row can be found in its archive, whether it is read from the front or by the index.
TEST(WebDataset, RowsKnowTheirPlaceInAPlainTar) {
  TempFolder folder;
  folder.write_tar("a.tar", {test::sample("0", "J", "t"), test::sample("1", "J", "t")});
  const Manifest manifest = manifest_of(folder.path("a.tar"));
  const auto source = make_source({}, manifest, 64);
  const auto offset_of_next = [](SplitReader& reader) { return std::get<RawSample>(*reader.next()).ref.offset; };
  const auto from_front = source->open({0, 0, 1}, 0);
  EXPECT_EQ(offset_of_next(*from_front), 0u);
  EXPECT_EQ(offset_of_next(*from_front), 2048u);  // two members of a header and a block each
  EXPECT_EQ(offset_of_next(*source->open({0, 0, 1}, 1)), 2048u);
}

TEST(WebDataset, AKeyTooLongForAnIdIsARejectedRow) {
  TempFolder folder;
  folder.write_tar("a.tar", {test::sample(std::string(3000, 'k'), "J", "t"), test::sample("1", "J", "t")});
  const Manifest manifest = manifest_of(folder.path("a.tar"));
  const auto source = make_source({}, manifest, 64);
  const EpochOrder order(1, {1, {{0, 0, 1}}});
  StripeReader reader(order, *source, 0, {});
  const StripeRow first = reader.next();
  ASSERT_TRUE(std::holds_alternative<Rejected>(first.row.value()));
  EXPECT_EQ(std::get<Rejected>(*first.row).reason, RejectReason::too_large);
  EXPECT_EQ(std::get<Rejected>(*first.row).detail, "an id of 3002 bytes");
  EXPECT_EQ(std::get<RawSample>(reader.next().row.value()).ref.id, "a/1");
}

TEST(WebDataset, MetadataAreReadForFiltersOnly) {
  TempFolder folder;
  folder.write_tar("a.tar", {{.key = "0", .fields = {{"jpg", "J"}, {"json", "{\"w\": 1}"}, {"txt", "t"}}}});
  const Manifest manifest = manifest_of(folder.path("a.tar"));
  SourceConfig config;
  EXPECT_EQ(std::get<RawSample>(*make_source(config, manifest, 64)->open({0, 0, 1}, 0)->next()).json, "");
  config.filters = {{"w", "1"}};
  EXPECT_EQ(std::get<RawSample>(*make_source(config, manifest, 64)->open({0, 0, 1}, 0)->next()).json, "{\"w\": 1}");
}

// Twelve samples, some of one key, a name that needs an extended header, one without caption; whole, cut short, or
// compressed under the name of a plain one.
class LanesAndResume : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::vector<TarSample> samples;
    for (int i = 0; i < 12; ++i)
      samples.push_back(
          test::sample(i % 5 == 0 ? "same" : std::to_string(i), std::string(700 + i, 'x'), std::to_string(i)));
    samples[7].key = std::string(130, 'k') + "/" + std::string(90, 'n');
    samples[8].fields.pop_back();
    folder_.write_tar("a.tar", samples);
    std::string bytes = read_file(folder_.path("a.tar"));
    if (GetParam() == "cut in a member") bytes.resize(bytes.size() - 1024 - 10240 % 512 - 1024 - 600);
    if (GetParam() == "no end mark") bytes.resize(bytes.size() - 1024);
    if (GetParam() == "no tar at all") bytes = std::string(3000, 'z');
    folder_.write("a.tar", bytes);
    const std::string tar = folder_.path("a.tar");
    if (GetParam() == "gzipped") {
      ASSERT_EQ(std::system(fmt::format("gzip {0} && mv {0}.gz {0}", tar).c_str()), 0);
    }
  }
  TempFolder folder_;
};

TEST_P(LanesAndResume, EveryCutGivesTheSameRows) {
  const Manifest manifest = manifest_of(folder_.path("a.tar"));
  const auto source = make_source({}, manifest, 64);
  const std::vector<std::string> whole = rows_of(*source, {0, 0, 1});
  ASSERT_FALSE(whole.empty());
  if (GetParam() == "whole" || GetParam() == "gzipped") {
    ASSERT_EQ(whole.size(), 12u);
    EXPECT_EQ(whole[0], "a/same=0");
    EXPECT_EQ(whole[5], "a/same#2=5");
    EXPECT_EQ(whole[8], "a/8:missing_caption");
    EXPECT_EQ(whole[10], "a/same#3=10");
  } else {
    EXPECT_EQ(whole.back(), "a:archive_error");
    EXPECT_EQ(std::count(whole.begin(), whole.end(), "a:archive_error"), 1);
  }
  for (std::uint32_t splits = 1; splits <= 5; ++splits) {
    for (std::uint32_t split = 0; split < splits; ++split) {
      std::vector<std::string> expected;
      for (std::size_t i = split; i < whole.size(); i += splits) expected.push_back(whole[i]);
      for (std::size_t first = 0; first <= expected.size(); ++first) {
        const std::vector<std::string> rest(expected.begin() + std::min(first, expected.size()), expected.end());
        EXPECT_EQ(rows_of(*source, {0, split, splits}, first), rest) << split << " of " << splits << " from " << first;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Archives, LanesAndResume,
                         testing::Values("whole", "cut in a member", "no end mark", "no tar at all", "gzipped"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

// GNU tar --sparse: 512 zeros that are not there, then 512 bytes.
std::string sparse_member(const std::string& name) {
  std::string header = test::tar_header(name, 512, 'S');
  const auto put = [&](std::size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  put(257, std::string("ustar  \0", 8));
  put(386, "00000001000 00000001000 ");
  put(483, "00000002000 ");
  put(148, "        ");
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  return header + std::string(512, 'x');
}

TEST(WebDataset, AnArchiveWithASparseMemberIsReadInSplits) {
  TempFolder folder;
  std::string tar;
  for (const char* key : {"0", "1", "2", "3"}) {
    const std::string name = key;
    tar += name == "1" || name == "3" ? sparse_member(name + ".jpg") : test::tar_member(name + ".jpg", "J");
    tar += test::tar_member(name + ".txt", "t" + name);
  }
  folder.write("a.tar", tar + test::tar_end());
  const Manifest manifest = manifest_of(folder.path("a.tar"));
  const auto source = make_source({}, manifest, 64);
  EXPECT_THAT(rows_of(*source, {0, 0, 1}), ElementsAre("a/0=t0", "a/1=t1", "a/2=t2", "a/3=t3"));
  EXPECT_THAT(rows_of(*source, {0, 0, 2}), ElementsAre("a/0=t0", "a/2=t2"));
  EXPECT_THAT(rows_of(*source, {0, 1, 2}), ElementsAre("a/1=t1", "a/3=t3"));
  EXPECT_EQ(std::get<RawSample>(*source->open({0, 1, 2}, 1)->next()).image,
            std::string(512, '\0') + std::string(512, 'x'));
}

TEST(WebDataset, StreamsResumeByReadingOn) {
  TempFolder folder;
  folder.write_tar("a.tar", {test::sample("k", "J", "0"), test::sample("l", "J", "1"), test::sample("k", "J", "2")});
  const Manifest manifest = manifest_of("pipe:cat " + folder.path("a.tar"));
  const auto source = make_source({}, manifest, 64);
  EXPECT_THAT(rows_of(*source, {0, 0, 1}), ElementsAre("a/k=0", "a/l=1", "a/k#2=2"));
  EXPECT_THAT(rows_of(*source, {0, 0, 1}, 2), ElementsAre("a/k#2=2"));
}

TEST(WebDataset, ACommandThatFailsIsABadRowBehindItsSamples) {
  TempFolder folder;
  folder.write_tar("a.tar", {test::sample("k", "J", "0"), test::sample("l", "J", "1")});
  const std::string command = "pipe:cat " + folder.path("a.tar") + "; exit 3";
  Manifest manifest = manifest_of(command);
  const auto source = make_source({}, manifest, 64);
  EXPECT_THAT(rows_of(*source, {0, 0, 1}), ElementsAre("a/k=0", "a/l=1", "a:archive_error"));
  EXPECT_THAT(rows_of(*source, {0, 0, 1}, 2), ElementsAre("a:archive_error"));
  EXPECT_THAT(rows_of(*source, {0, 0, 1}, 3), ElementsAre());
  // Who has all that was wanted closes the pipe, and what the command says is of no interest.
  manifest.archives[0].limit = 2;
  EXPECT_THAT(rows_of(*make_source({}, manifest, 64), {0, 0, 1}), ElementsAre("a/k=0", "a/l=1"));
}

// A run that goes on behind rows that an archive does not have any more would lose all that is left of it in silence.
TEST(WebDataset, AnArchiveThatLacksRowsThatWereReadIsABadRow) {
  const TempFolder folder;
  std::vector<TarSample> samples;
  for (int i = 0; i < 10; ++i) samples.push_back(test::sample(std::to_string(i), "J", "c"));
  folder.write_tar("a.tar", samples);
  const Manifest manifest = manifest_of(folder.path("a.tar"));
  for (const std::uint32_t count : {1, 2, 3}) {
    samples.resize(10, test::sample("9", "J", "c"));
    folder.write_tar("a.tar", samples);
    {
      const auto source = make_source({}, manifest, 64);
      for (std::uint32_t index = 0; index < count; ++index)  // all rows were read
        EXPECT_FALSE(source->open({0, index, count}, (9 - index) / count + 1)->next());
    }
    samples.resize(4);
    folder.write_tar("a.tar", samples);
    fs::remove(folder.path(".a.tar.millrace-index"));
    const auto source = make_source({}, manifest, 64);
    for (int visit = 0; visit < 2; ++visit)  // by passing over rows, and by the index
      for (std::uint32_t index = 0; index < count; ++index) {
        const auto had = (9 - index) / count + 1, still_there = (3 - index) / count + 1;
        const auto reader = source->open({0, index, count}, had);
        const auto row = reader->next();
        ASSERT_TRUE(row) << index << " of " << count;
        const auto& lost = std::get<Rejected>(*row);
        EXPECT_EQ(lost.reason, RejectReason::archive_error);
        EXPECT_THAT(lost.detail, testing::HasSubstr("only 4 of the rows that were read before"));
        EXPECT_FALSE(reader->next());
        EXPECT_FALSE(source->open({0, index, count}, still_there)->next());
        EXPECT_TRUE(source->open({0, index, count}, still_there + 1)->next()) << "a row less is enough";
      }
  }
}

// Rows up to the cut, then one for what is gone: whoever reads it now, and whoever does in the next epoch.
TEST(WebDataset, AnIndexedArchiveThatIsCutWhileItIsReadIsReadAnew) {
  const TempFolder folder;
  std::vector<TarSample> samples;
  for (int i = 0; i < 10; ++i) samples.push_back(test::sample(std::to_string(i), "J", "c"));
  folder.write_tar("a.tar", samples);
  const Manifest manifest = manifest_of(folder.path("a.tar"));
  const auto source = make_source({}, manifest, 64);
  const auto reader = source->open({0, 1, 2}, 0);
  EXPECT_EQ(test::show(reader->next().value()), "a/1=c");
  constexpr std::uintmax_t sample_bytes = 4 * 512;
  fs::resize_file(folder.path("a.tar"), 5 * sample_bytes + 600);
  EXPECT_EQ(test::show(reader->next().value()), "a/3=c");
  EXPECT_THROW(reader->next(), StorageError);
  EXPECT_THAT(rows_of(*source, {0, 1, 2}, 2), ElementsAre("a:archive_error"));
  EXPECT_THAT(rows_of(*source, {0, 1, 2}), ElementsAre("a/1=c", "a/3=c", "a:archive_error"));
}

// As rsync --times leaves it, of the same size by chance.
TEST(WebDataset, AnIndexThatDoesNotFitIsMadeAnewWhateverTheTimesSay) {
  const TempFolder folder;
  const auto write = [&](std::size_t of_the_first, std::size_t of_the_last) {
    std::vector<TarSample> samples;
    for (int i = 0; i < 10; ++i)
      samples.push_back(test::sample(std::to_string(i),
                                     std::string(i == 0   ? of_the_first
                                                 : i == 9 ? of_the_last
                                                          : 1,
                                                 'J'),
                                     "c"));
    folder.write_tar("a.tar", samples);
  };
  for (const std::size_t more : {600, 1100}) {  // one block: begins meet pixels; two: the captions of the same samples
    SCOPED_TRACE(more);
    write(more, 1);
    const auto size = fs::file_size(folder.path("a.tar"));
    const auto time = fs::last_write_time(folder.path("a.tar"));
    const Manifest manifest = manifest_of(folder.path("a.tar"));
    const auto source = make_source({}, manifest, 64);
    const auto rows = rows_of(*source, {0, 1, 2});
    write(1, more);
    ASSERT_EQ(fs::file_size(folder.path("a.tar")), size);
    fs::last_write_time(folder.path("a.tar"), time);
    EXPECT_THROW(rows_of(*source, {0, 1, 2}), StorageError);
    EXPECT_EQ(rows_of(*source, {0, 1, 2}), rows);
  }
}

TEST(WebDataset, LimitEndsTheArchiveInEveryLane) {
  TempFolder folder;
  std::vector<TarSample> samples;
  for (int i = 0; i < 9; ++i) samples.push_back(test::sample(std::to_string(i), "J", ""));
  folder.write_tar("a.tar", samples);
  const Manifest manifest = manifest_of(folder.path("a.tar"), 5);
  const auto source = make_source({}, manifest, 64);
  EXPECT_EQ(rows_of(*source, {0, 0, 1}).size(), 5u);
  EXPECT_EQ(rows_of(*source, {0, 0, 2}).size(), 3u);
  EXPECT_EQ(rows_of(*source, {0, 1, 2}).size(), 2u);
}

TEST(Synthetic, NeedsNoFilesAndCanBeCut) {
  SourceConfig config;
  config.type = SourceConfig::Type::synthetic;
  config.limit = 2000;
  const Manifest manifest = make_manifest(config, false);
  ASSERT_EQ(manifest.archives.size(), 2u);
  const auto source = make_source(config, manifest, 32);
  const auto whole = rows_of(*source, {1, 0, 1});
  EXPECT_EQ(whole.size(), 2000u - 1024u);
  EXPECT_EQ(rows_of(*source, {1, 1, 3}, 2).front(), whole[7]);
}

}  // namespace
}  // namespace millrace
