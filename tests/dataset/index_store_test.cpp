#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "index_store.h"
#include "io/tar_bytes.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/loader/sources.h"
#include "rows_of.h"
#include "temp_archives.h"

namespace millrace {
namespace {

using test::TempFolder;

void write_samples(const TempFolder& folder, int count) {
  std::vector<TarSample> samples;
  for (int i = 0; i < count; ++i)
    samples.push_back(test::sample(i % 3 ? fmt::to_string(i) : "same", "J", fmt::to_string(i)));
  folder.write_tar("a.tar", samples);
}

TEST(IndexStore, KeepsAnIndexBesideItsArchive) {
  TempFolder folder;
  write_samples(folder, 9);
  const IndexStore store("beside");
  const std::string kept = folder.path(".a.tar.millrace-index");
  const TarIndex index = store.index_of(folder.path("a.tar"));
  EXPECT_EQ(index, index_tar(folder.path("a.tar")));
  EXPECT_EQ(index.repeated.size(), 2u);
  ASSERT_TRUE(fs::exists(kept));
  const std::string bytes = read_file(kept);
  EXPECT_EQ(store.index_of(folder.path("a.tar")), index);

  // Where content changes without a trace, the index that was kept shows that it is what is read.
  const std::string tar = read_file(folder.path("a.tar"));
  const auto time = fs::last_write_time(folder.path("a.tar"));
  folder.write("a.tar", std::string(tar.size(), 'z'));
  fs::last_write_time(folder.path("a.tar"), time);
  EXPECT_EQ(store.index_of(folder.path("a.tar")), index);
  folder.write("a.tar", tar);
  fs::last_write_time(folder.path("a.tar"), time);

  folder.write(".a.tar.millrace-index", bytes.substr(0, bytes.size() / 2));
  EXPECT_EQ(store.index_of(folder.path("a.tar")), index);
  EXPECT_EQ(read_file(kept), bytes) << "a damaged one is made again";
  EXPECT_EQ(IndexStore("never").index_of(folder.path("a.tar")), index);
}

TEST(IndexStore, AnArchiveThatChangedIsReadAgain) {
  TempFolder folder;
  const IndexStore store("beside");
  write_samples(folder, 9);
  store.index_of(folder.path("a.tar"));
  write_samples(folder, 5);
  EXPECT_EQ(store.index_of(folder.path("a.tar")).samples.size(), 5u);
  // Same size, other time.
  const std::string bytes = read_file(folder.path("a.tar"));
  const auto time = fs::last_write_time(folder.path("a.tar"));
  folder.write("a.tar", std::string(bytes.size(), 'z'));
  fs::last_write_time(folder.path("a.tar"), time + std::chrono::nanoseconds(1));
  EXPECT_TRUE(store.index_of(folder.path("a.tar")).broken.has_value());
  EXPECT_TRUE(store.index_of(folder.path("a.tar")).broken.has_value()) << "this too is kept";
}

// Samples may have been counted by other rules.
TEST(IndexStore, OneOfAnEarlierFormatIsMadeAgain) {
  TempFolder folder;
  const IndexStore store("beside");
  write_samples(folder, 5);
  const TarIndex index = store.index_of(folder.path("a.tar"));
  auto kept = nlohmann::json::from_cbor(read_file(folder.path(".a.tar.millrace-index")).substr(32));
  kept["extents"].clear();
  const auto keep_as = [&](int format) {
    kept["format"] = format;
    std::string content;
    nlohmann::json::to_cbor(kept, content);
    folder.write(".a.tar.millrace-index", hash128(content).hex() + content);
  };
  const int format = kept["format"];
  keep_as(format);
  EXPECT_TRUE(store.index_of(folder.path("a.tar")).samples.empty()) << "which is believed";
  keep_as(format - 1);
  EXPECT_EQ(store.index_of(folder.path("a.tar")), index);
}

TEST(IndexStore, AFolderOfItsOwnTellsArchivesOfOneNameApart) {
  TempFolder folder;
  const IndexStore store(folder.path("indices/deep"));
  EXPECT_NE(store.file_of("/a/0.tar"), store.file_of("/b/0.tar"));
  EXPECT_EQ(store.file_of("/a/0.tar"), store.file_of("/a/./0.tar"));
  write_samples(folder, 3);
  store.index_of(folder.path("a.tar"));
  EXPECT_TRUE(fs::exists(*store.file_of(folder.path("a.tar"))));
  EXPECT_FALSE(fs::exists(folder.path(".a.tar.millrace-index")));
}

TEST(IndexStore, WhatCannotBeWrittenIsDoneWithout) {
  TempFolder folder;
  write_samples(folder, 3);
  folder.write("file", "");
  const IndexStore store(folder.path("file/below"));
  EXPECT_EQ(store.index_of(folder.path("a.tar")).samples.size(), 3u);
}

SourceConfig config_of(const TempFolder& folder) {
  SourceConfig config;
  config.path = {folder.path("a.tar")};
  return config;
}

TEST(IndexStore, ServesLanesAndResumption) {
  TempFolder folder;
  write_samples(folder, 9);
  const auto config = config_of(folder);
  const Manifest manifest = test::manifest_of(config);
  const auto expected = test::rows_of(*make_source(config, manifest, 64), {0, 1, 2}, 2);
  EXPECT_FALSE(fs::exists(folder.path(".a.tar.millrace-index"))) << "never is what a caller gets who says nothing";
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(test::rows_of(*make_source(config, manifest, 64, "beside"), {0, 1, 2}, 2), expected);
  EXPECT_TRUE(fs::exists(folder.path(".a.tar.millrace-index")));
}

// A hole in place of the first image, which takes no room on the disk.
TEST(IndexStore, KnowsPlacesBeyond4GiB) {
  constexpr std::uint64_t hole = 5ull << 30;
  TempFolder folder;
  const std::string path = folder.path("a.tar");
  folder.write("a.tar", test::tar_header("0.jpg", hole));
  fs::resize_file(path, 512 + hole);
  std::ofstream(path, std::ios::binary | std::ios::app)
      << test::tar_member("1.jpg", "J") << test::tar_member("1.txt", "behind") << test::tar_end();
  const auto config = config_of(folder);
  const Manifest manifest = test::manifest_of(config);
  for (int i = 0; i < 2; ++i) {  // the second time from the disk
    const auto source = make_source(config, manifest, 64, "beside");
    EXPECT_THAT(test::rows_of(*source, {0, 0, 2}), testing::ElementsAre(testing::HasSubstr(":too_large")));
    EXPECT_THAT(test::rows_of(*source, {0, 1, 2}), testing::ElementsAre(testing::HasSubstr("=behind")));
    EXPECT_TRUE(fs::exists(folder.path(".a.tar.millrace-index")));
  }
}

// From here on nobody gets past the first header, and an index that was kept cannot tell.
void damage_first_header(const std::string& path) {
  const auto time = fs::last_write_time(path);
  std::string tar = read_file(path);
  tar.replace(0, 512, 512, 'z');
  std::ofstream(path, std::ios::binary) << tar;
  fs::last_write_time(path, time);
}

// Passing over the rows before the first one reads less than an index takes, and leaves nothing in the folder.
TEST(IndexStore, MakesNoneOfAnArchiveThatIsReadWhole) {
  TempFolder folder;
  write_samples(folder, 9);
  const auto config = config_of(folder);
  const Manifest manifest = test::manifest_of(config);
  const auto open = [&] { return make_source(config, manifest, 64, "beside"); };
  const auto resumed = test::rows_of(*open(), {0, 0, 1}, 4);
  EXPECT_EQ(resumed.size(), 5u);
  EXPECT_FALSE(fs::exists(folder.path(".a.tar.millrace-index")));
  const auto interrupted = open();
  for (const std::uint64_t row : {0, 4}) EXPECT_FALSE(test::rows_of(*interrupted, {0, 0, 1}, row).empty());
  ASSERT_TRUE(fs::exists(folder.path(".a.tar.millrace-index")))
      << "another fault would read it from its beginning again";
  fs::remove(folder.path(".a.tar.millrace-index"));
  test::rows_of(*open(), {0, 0, 2});
  ASSERT_TRUE(fs::exists(folder.path(".a.tar.millrace-index"))) << "splits need one";
  damage_first_header(folder.path("a.tar"));
  EXPECT_EQ(test::rows_of(*open(), {0, 0, 1}, 4), resumed) << "one that is there is used";
}

// A pass over the headers for each split would read the archive again and again.
TEST(IndexStore, WithoutADiskOnePassServesAllSplits) {
  TempFolder folder;
  write_samples(folder, 9);
  const auto config = config_of(folder);
  const Manifest manifest = test::manifest_of(config);
  const auto source = make_source(config, manifest, 64, "never");
  const auto second = test::rows_of(*source, {0, 1, 2});
  EXPECT_EQ(second.size(), 4u);
  damage_first_header(folder.path("a.tar"));
  EXPECT_EQ(test::rows_of(*source, {0, 1, 2}), second);
}

}  // namespace
}  // namespace millrace
