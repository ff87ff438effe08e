#include <gmock/gmock.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <random>
#include <set>

#include "archive_names.h"
#include "error_of.h"
#include "millrace/core/error.h"
#include "millrace/core/phase.h"
#include "millrace/core/stop.h"
#include "millrace/dataset/manifest.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/sources.h"
#include "temp_archives.h"

namespace millrace {
namespace {

using test::TempFolder;
using testing::ElementsAre;

Manifest seekable_archives(const std::vector<std::uint64_t>& rows) {
  Manifest manifest;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    manifest.archives.push_back({.path = fmt::format("{:05}.tar", i),
                                 .name = fmt::format("{:05}", i),
                                 .seekable = true,
                                 .rows = rows[i],
                                 .limit = {}});
  }
  return manifest;
}

Manifest streams(std::size_t count) {
  Manifest manifest = seekable_archives(std::vector<std::uint64_t>(count, 0));
  for (Archive& archive : manifest.archives) {
    archive.seekable = false;
    archive.rows.reset();
  }
  return manifest;
}

TEST(Stripes, UnevenOnesLeaveRowsForLater) {
  const auto unseen = [](std::size_t archives, int batch) {
    return unseen_after_one_pass(plan_stripes(batch, {}, seekable_archives(std::vector<std::uint64_t>(archives, 100))));
  };
  EXPECT_EQ(unseen(1024, 512), 0);
  EXPECT_NEAR(unseen(332, 512), 152 * (2.0 / 664 - 1.0 / 512), 1e-12);
  EXPECT_NEAR(unseen(1242, 512), 218 * (3.0 / 1242 - 1.0 / 512), 1e-12);
  EXPECT_LT(unseen(20'000, 512), 0.02);
}

TEST(ArchiveNames, AreAsShortAsTheyCanBe) {
  EXPECT_THAT(archive_names({"/data/00000.tar", "/data/00001.tar.gz", "b/part.1.tar"}),
              ElementsAre("00000", "00001", "part.1"));
  EXPECT_THAT(archive_names({"/x/a/0.tar", "/x/b/0.tar", "/x/b/1.tar"}), ElementsAre("a/0", "b/0", "1"));
  EXPECT_THAT(archive_names({"/a/x/0.tar", "/b/x/0.tar"}), ElementsAre("a/x/0", "b/x/0"));
  EXPECT_THAT(archive_names({"0.tar", "/b/0.tar"}), ElementsAre("0", "b/0"));
  EXPECT_THAT(archive_names({"file:/d/7.tar", "https://host/set/8.tar?token=a/b.tar", "http://host/set/9.tgz"}),
              ElementsAre("7", "8", "9"));
  EXPECT_THAT(archive_names({"pipe:aws s3 cp s3://bucket/00012.tar -", "pipe:cat '/x/13.tar.gz' | gunzip",
                             "pipe:make-data --fast", "-"}),
              ElementsAre("00012", "13", "pipe-2", "pipe-3"));
  EXPECT_THAT(archive_names({"https://alice:pass@word@a/0.tar", "https://bob@b/0.tar"}), ElementsAre("a/0", "b/0"));
  EXPECT_THAT(archive_names({"/a/X.CSV", "/a/y.Tar.GZ", "/a/../b/./z.tar"}), ElementsAre("X", "y", "z"));
  EXPECT_THAT(archive_names({"s3://b/set#1.tar", "s3://b/set#2.tar", "s3://b/set?3.tar"}),
              ElementsAre("set#1", "set#2", "set?3"));
  EXPECT_THROW(archive_names({"http://h/0.tar?a", "http://h/0.tar#b"}), Error);
  EXPECT_THROW(archive_names({"/a/0.tar", "/a/0.tar"}), Error);
  EXPECT_THROW(archive_names({"/a/0.tar", "/a/./0.tar"}), Error);
  EXPECT_THROW(archive_names({"/a/0.tar", "//a//0.tar"}), Error);
  EXPECT_THAT(archive_names({"/a/b/../0.tar", "/a/0.tar"}), ElementsAre("../0", "a/0"));  // b may be a link
  EXPECT_THROW(archive_names({"/a/0.tar", "/a/0.tar.gz"}), Error);
  EXPECT_THAT(archive_names({"/a/caf\u00e9.tar"}), ElementsAre("caf\u00e9"));
  EXPECT_THROW(archive_names({"/a/caf\xe9.tar"}), Error);
}

int stripes_for(int batch, const Manifest& manifest, config::Auto<int> wanted = {}) {
  return static_cast<int>(plan_stripes(batch, wanted, manifest).stripes);
}

TEST(PlanStripes, LargestDivisorThatTheArchivesFeed) {
  EXPECT_EQ(stripes_for(2048, streams(4096)), 512);
  EXPECT_EQ(stripes_for(2048, seekable_archives(std::vector<std::uint64_t>(10, 1000))), 512);
  EXPECT_EQ(stripes_for(1000, streams(700)), 500);
  EXPECT_EQ(stripes_for(32, seekable_archives({1000})), 32);
  EXPECT_EQ(stripes_for(32, seekable_archives({3, 20})), 16);  // 23 rows
  EXPECT_EQ(stripes_for(32, seekable_archives({0, 0})), 2);    // the archives will say themselves that they are empty
  EXPECT_EQ(stripes_for(32, streams(5)), 4);
  EXPECT_EQ(stripes_for(7, seekable_archives({100})), 7);
  EXPECT_EQ(stripes_for(1, streams(3)), 1);
}

TEST(PlanShares, EveryRankHasOneAsFarAsTheArchivesGo) {
  const auto shares = [](int ranks, const Manifest& manifest) {
    const StripePlan plan = plan_shares(ranks, manifest);
    EXPECT_GE(plan.splits.size(), plan.stripes);
    return static_cast<int>(plan.stripes);
  };
  EXPECT_EQ(shares(7, streams(6)), 6);
  EXPECT_EQ(shares(7, streams(7)), 7);
  EXPECT_EQ(shares(600, streams(4096)), 600);
  EXPECT_EQ(shares(521, streams(521)), 521);
  EXPECT_EQ(shares(521, seekable_archives({1000, 1000})), 521);
  EXPECT_EQ(shares(7, seekable_archives({3, 2})), 5);
  EXPECT_EQ(shares(7, seekable_archives({0, 1})), 2);  // the empty one says itself that it is
  Manifest mixed = streams(3);
  mixed.archives.push_back(seekable_archives({2}).archives[0]);
  EXPECT_EQ(shares(11, mixed), 5);
  EXPECT_EQ(shares(1, streams(3)), 1);
}

TEST(PlanStripes, ExplicitNumbersMustFit) {
  EXPECT_EQ(stripes_for(32, streams(8), {8}), 8);
  EXPECT_THROW(stripes_for(32, streams(8), {5}), Error);
  EXPECT_THROW(stripes_for(32, streams(8), {16}), Error);
  EXPECT_THROW(stripes_for(32, seekable_archives({10}), {16}), Error);
}

TEST(PlanStripes, LanesCoverEveryArchiveAndNoneIsEmpty) {
  const Manifest manifest = seekable_archives({3, 20, 0, 9});
  const StripePlan plan = plan_stripes(24, {}, manifest);
  EXPECT_EQ(plan.stripes, 24u);
  EXPECT_GE(plan.splits.size(), 24u);
  std::map<std::uint32_t, std::set<std::uint32_t>> splits;
  for (const Split& split : plan.splits) {
    EXPECT_LE(split.count, std::max<std::uint64_t>(1, *manifest.archives[split.archive].rows));
    EXPECT_LT(split.index, split.count);
    EXPECT_TRUE(splits[split.archive].insert(split.index).second);
  }
  for (const Split& split : plan.splits) EXPECT_EQ(splits[split.archive].size(), split.count);
  EXPECT_EQ(splits.size(), 4u);
}

TEST(PlanStripes, RowsAreCountedOnlyWhereSplitsAreNeeded) {
  TempFolder folder;
  for (int i = 0; i < 8; ++i) folder.write_tar(fmt::format("{}.tar", i), {test::sample("0", "x", "")});
  DataConfig config;
  config.train.path = {folder.path("")};
  for (const int stripes : {8, 4}) {
    config.stripes = {stripes};
    for (const auto& archive : make_data_plan(config.train, config, 8).manifest.archives) EXPECT_FALSE(archive.rows);
  }
  config.stripes = {};
  for (const auto& archive : make_data_plan(config.train, config, 16).manifest.archives) EXPECT_EQ(archive.rows, 1u);
}

// Archives are not counted to their ends.
TEST(PlanStripes, AreThoseOfAllRowsThoughFewHeadersAreRead) {
  TempFolder folder;
  const std::vector<std::uint64_t> sizes = {0, 1, 2, 3, 5, 9, 40, 130};
  for (const auto size : sizes) {
    std::vector<TarSample> rows;
    for (std::uint64_t i = 0; i < size; ++i) rows.push_back(test::sample(std::to_string(i), "x", ""));
    folder.write_tar(fmt::format("{}.tar", size), rows);
  }
  int refused = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto drawn = fmt::format("seed-{}", seed);
    fs::create_directories(folder.path(drawn));
    std::vector<std::uint64_t> rows(1 + random() % 12);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i] = sizes[random() % sizes.size()];
      fs::copy_file(folder.path(fmt::format("{}.tar", rows[i])), folder.path(fmt::format("{}/{:05}.tar", drawn, i)));
    }
    const int batch = 1 << (random() % 9);
    DataConfig config;
    config.train.path = {folder.path(drawn)};
    if (seed % 2 == 1) config.stripes = {std::max(1, batch >> (random() % 3))};
    const auto plan_of = [](const auto& plan) -> std::optional<StripePlan> {
      try {
        return plan();
      } catch (const Error&) {
        return std::nullopt;
      }
    };
    const auto planned = plan_of([&] { return make_data_plan(config.train, config, batch).stripes; });
    EXPECT_EQ(planned, plan_of([&] { return plan_stripes(batch, config.stripes, seekable_archives(rows)); })) << drawn;
    refused += planned ? 0 : 1;
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 30);
}

// data.stripes may ask for more than auto would plan.
TEST(PlanStripes, MoreStripesThanAutoPlansCountFurther) {
  TempFolder folder;
  folder.write_tar("00000.tar", {test::sample("0", "x", ""), test::sample("1", "x", "")});
  for (int i = 1; i < 600; ++i) fs::copy_file(folder.path("00000.tar"), folder.path(fmt::format("{:05}.tar", i)));
  DataConfig config;
  config.stripes = {1024};
  config.train.path = {folder.path("")};
  const DataPlan many = make_data_plan(config.train, config, 1024);
  EXPECT_EQ(many.stripes.stripes, 1024u);
  EXPECT_EQ(many.stripes.splits.size(), 1200u);

  std::vector<TarSample> rows;
  for (int i = 0; i < 1030; ++i) rows.push_back(test::sample(std::to_string(i), "x", ""));
  fs::create_directories(folder.path("long"));
  folder.write_tar("long/a.tar", rows);
  config.train.path = {folder.path("long/a.tar")};
  const DataPlan one = make_data_plan(config.train, config, 1024);
  EXPECT_EQ(one.stripes.splits.size(), 1024u);
}

TEST(MakeManifest, SortsByNameWhateverTheList) {
  TempFolder folder;
  for (const char* name : {"b.tar", "a.tar", "c.tar"}) folder.write_tar(name, {test::sample("0", "x", "")});
  SourceConfig source;
  source.path = {folder.path("c.tar"), folder.path("{b,a}.tar")};
  const Manifest manifest = make_manifest(source, false);
  ASSERT_EQ(manifest.archives.size(), 3u);
  EXPECT_EQ(manifest.archives[0].name, "a");
  EXPECT_TRUE(manifest.archives[0].seekable);
  EXPECT_GT(manifest.archives[0].bytes, 0u);
  source.path = {folder.path("")};
  EXPECT_EQ(make_manifest(source, false), manifest);
  EXPECT_EQ(make_manifest(source, false).digest(), manifest.digest());
  folder.write_tar("b.tar", {test::sample("0", std::string(50000, 'x'), "")});
  EXPECT_NE(make_manifest(source, false).digest(), manifest.digest());
}

TEST(MakeManifest, LimitKeepsTheFirstRows) {
  TempFolder folder;
  for (const char* name : {"a.tar", "b.tar", "c.tar"}) {
    folder.write_tar(name, {test::sample("0", "x", ""), test::sample("1", "x", ""), test::sample("2", "x", "")});
  }
  SourceConfig source;
  source.path = {folder.path("")};
  source.limit = 4;
  const Manifest manifest = make_manifest(source, false);
  ASSERT_EQ(manifest.archives.size(), 2u);
  EXPECT_EQ(manifest.archives[0].limit, std::nullopt);
  EXPECT_EQ(manifest.archives[1].limit, 1u);
  source.limit = 100;
  EXPECT_EQ(make_manifest(source, false).archives.size(), 3u);
}

// Several archives are counted at once; whoever opened the last one, a pipe, would wait for its writer.
TEST(MakeManifest, LimitCountsAheadAndOpensNoPipe) {
  TempFolder folder;
  for (int i = 0; i < 40; ++i)
    folder.write_tar(fmt::format("{:02}.tar", i),
                     {test::sample("0", "x", ""), test::sample("1", "x", ""), test::sample("2", "x", "")});
  ASSERT_EQ(::mkfifo(folder.path("40.tar").c_str(), 0600), 0);
  SourceConfig source;
  source.path = {folder.path("{00..40}.tar")};
  source.limit = 100;
  const std::uint64_t moves = phase::moves;
  const Manifest manifest = make_manifest(source, false);
  ASSERT_EQ(manifest.archives.size(), 34u);
  EXPECT_EQ(manifest.archives[32].rows, 3u);
  EXPECT_EQ(manifest.archives[32].limit, std::nullopt);
  EXPECT_EQ(manifest.archives[33].rows, 1u);
  EXPECT_EQ(manifest.archives[33].limit, 1u);
  EXPECT_GE(phase::moves, moves + 34) << "the watchdog sees that it goes on";
}

// In a process of its own, since nothing takes a stop back.
TEST(MakeManifest, LimitHeedsAStop) {
  TempFolder folder;
  folder.write_tar("a.tar", {test::sample("0", "x", "")});
  SourceConfig source;
  source.path = {folder.path("")};
  source.limit = 1;
  const auto told = [&] {
    stop::request(SIGTERM);
    std::exit(static_cast<int>(test::error_of([&] { make_manifest(source, false); }).exit()));
  };
  EXPECT_EXIT(told(), testing::ExitedWithCode(static_cast<int>(Exit::requeue)), "");
}

// Several ranks can share one, whatever it is called.
TEST(MakeManifest, APlainTarIsSeekableByItsFirstHeader) {
  const TempFolder folder;
  folder.write_tar("a.tar", {test::sample("1", "jpg", "txt"), test::sample("2", "jpg", "txt")});
  const std::string tar = read_file(folder.path("a.tar"));
  folder.write("b.wds", tar);
  folder.write("C.TAR", tar);
  folder.write("d", tar);
  folder.write("e.wds", "\x1f\x8b" + std::string(600, 'x'));  // compressed, by its first bytes
  folder.write("f.wds", tar.substr(0, 100));
  folder.write("g.tar.gz", tar);  // as it says
  SourceConfig source;
  for (const char* name : {"a.tar", "b.wds", "C.TAR", "d", "e.wds", "f.wds", "g.tar.gz"})
    source.path.push_back(folder.path(name));
  std::vector<std::string> seekable;
  for (const Archive& archive : list_archives(source, false).archives)
    if (archive.seekable) seekable.push_back(fs::path(archive.path).filename().string());
  EXPECT_THAT(seekable, testing::UnorderedElementsAre("a.tar", "b.wds", "C.TAR", "d"));

  source.path = {folder.path("b.wds")};
  const Manifest manifest = make_manifest(source, false);
  const auto images = make_source(source, manifest, 16);
  for (const std::uint32_t index : {0u, 1u}) {
    const auto row = images->open({0, index, 2}, 0)->next();
    ASSERT_TRUE(row.has_value());
    EXPECT_EQ(std::get<RawSample>(*row).ref.id, index == 0 ? "b.wds/1" : "b.wds/2");
  }
}

TEST(MakeManifest, RefusesPipesUnlessAllowed) {
  SourceConfig source;
  source.path = {"pipe:cat /tmp/x.tar"};
  EXPECT_THROW(make_manifest(source, false), Error);
  EXPECT_FALSE(make_manifest(source, true).archives.at(0).seekable);
  source.path = {};
  EXPECT_THROW(make_manifest(source, true), Error);
}

TEST(Listing, TellsWhatBecameOfTheArchives) {
  Manifest before = seekable_archives({1, 1, 1, 1});
  for (Archive& archive : before.archives) archive.bytes = 100;
  before.archives[2].name = "odd\tname";
  Manifest after = before;
  EXPECT_EQ(after.digest(), before.digest());
  EXPECT_THAT(listing_changes(before.listing(), after.listing()), ElementsAre());
  after.archives.erase(after.archives.begin());
  after.archives[0].bytes = 7;
  after.archives[1].limit = 5;
  for (int i = 0; i < 7; ++i) {
    after.archives.push_back(before.archives[3]);
    after.archives.back().name = fmt::format("new-{}", i);
  }
  EXPECT_NE(after.digest(), before.digest());
  EXPECT_THAT(
      listing_changes(before.listing(), after.listing()),
      ElementsAre("7 archives added: new-0, new-1, new-2, new-3, new-4, ...", "1 archives removed: 00000",
                  "1 archives of another size: 00001 (100 -> 7 bytes)", "1 archives with another limit: odd\tname"));
}

TEST(DataPlan, TravelsAsBytes) {
  DataPlan plan{seekable_archives({10, 20}), {}};
  plan.manifest.archives[0].path = "/odd/\xff.tar";
  plan.manifest.archives[0].bytes = 5'000'000'000;
  plan.manifest.archives[1].seekable = false;
  plan.manifest.archives[1].rows.reset();
  plan.manifest.archives[1].limit = 7;
  plan.stripes = {2, {{0, 0, 1}, {1, 0, 2}, {1, 1, 2}}};
  EXPECT_EQ(data_plan_from_bytes(to_bytes(plan)), plan);
  EXPECT_THROW(data_plan_from_bytes("nonsense"), Error);
}

}  // namespace
}  // namespace millrace
