#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>

#include "dataset/fake_source.h"
#include "dataset/temp_archives.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/rejected_list.h"
#include "millrace/loader/stripe_stream.h"

namespace millrace {
namespace {

using nlohmann::json;
using test::FakeSource;
using test::Rows;
using test::TempFolder;
using testing::ElementsAre;
using testing::UnorderedElementsAreArray;

class RejectedListTest : public testing::Test {
 protected:
  RejectedListTest() {
    for (const char* name : {"a", "b"}) {
      Archive archive;
      archive.name = name;
      archive.path = std::string("/data/") + name + ".tar";
      manifest.archives.push_back(archive);
    }
  }

  RejectedList list(int rank = 0, std::size_t max_lines = 100) { return {rejected, rank, manifest, max_lines}; }
  static Rejected row(std::uint32_t archive, std::uint64_t index, RejectReason reason = RejectReason::decode_error) {
    Rejected row{{}, reason, "why"};
    row.ref.id = (archive ? "b/" : "a/") + std::to_string(index);
    row.ref.archive = archive;
    row.ref.row = index;
    return row;
  }
  std::string file(int rank) const { return rejected / fmt::format("rank-{:05d}.jsonl", rank); }
  std::vector<json> lines(int rank = 0) const {
    std::vector<json> result;
    std::ifstream in(file(rank));
    for (std::string line; std::getline(in, line);) result.push_back(json::parse(line));
    return result;
  }
  std::vector<std::uint64_t> indices(int rank = 0) const {
    std::vector<std::uint64_t> result;
    for (const json& line : lines(rank)) result.push_back(line.at("index"));
    return result;
  }

  const TempFolder folder;
  const fs::path rejected = folder.path("rejected");
  Manifest manifest;
};

TEST(PowerOfTen, IsOneWithNothingButNoughtsBehindIt) {
  for (const std::uint64_t number : {1ull, 10ull, 100ull, 1000000ull}) EXPECT_TRUE(is_power_of_ten(number)) << number;
  for (const std::uint64_t number : {0ull, 2ull, 11ull, 20ull, 110ull, 1001ull})
    EXPECT_FALSE(is_power_of_ten(number)) << number;
}

TEST_F(RejectedListTest, ALineTellsWhereTheRowIsAndWhy) {
  Rejected bad = row(1, 7, RejectReason::truncated_image);
  bad.ref.id = "b/folder/x#2";
  bad.ref.offset = 1536;
  bad.detail = "after \"3\" rows\n\xFF";
  Rejected broken = row(0, 9, RejectReason::archive_error);
  broken.ref.id = "a";
  auto list = this->list();
  list.add(bad);
  list.add(broken);
  EXPECT_THAT(lines(), ElementsAre(json({{"archive", "/data/b.tar"},
                                         {"index", 7},
                                         {"key", "folder/x#2"},
                                         {"offset", 1536},
                                         {"reason", "truncated_image"},
                                         {"detail", "after \"3\" rows\n\uFFFD"}}),
                                   json({{"archive", "/data/a.tar"},
                                         {"index", 9},
                                         {"key", nullptr},
                                         {"offset", nullptr},
                                         {"reason", "archive_error"},
                                         {"detail", "why"}})));
}

TEST_F(RejectedListTest, WithoutBadRowsThereIsNoFile) {
  list().add(row(0, 1, RejectReason::filtered));
  EXPECT_FALSE(fs::exists(rejected));
}

TEST_F(RejectedListTest, ARankListsARowOnce) {
  {
    auto first = list(0);
    first.add(row(0, 1));
    first.add(row(0, 1));
  }
  std::ofstream(file(0), std::ios::app) << R"({"archive":"/data/a.tar","ind)";  // a kill amid a line
  auto resumed = list(0);
  for (const std::uint64_t index : {1, 2}) {
    resumed.add(row(0, index));
    resumed.add(row(1, index));
  }
  EXPECT_THAT(indices(0), ElementsAre(1, 1, 2, 2));
}

// They may be a gigabyte. One that nobody writes to would hold up whoever opens it.
TEST_F(RejectedListTest, OtherRanksFilesAreNotRead) {
  fs::create_directories(rejected);
  ASSERT_EQ(::mkfifo(file(3).c_str(), 0600), 0);
  list(0).add(row(0, 1));
  EXPECT_THAT(indices(0), ElementsAre(1));
}

TEST_F(RejectedListTest, IsBoundedAndSaysSo) {
  for (int life = 0; life < 2; ++life) {
    auto list = this->list(0, 3);
    for (std::uint64_t index = 0; index < 10; ++index) list.add(row(0, index));
  }
  ASSERT_EQ(lines().size(), 5u);
  EXPECT_EQ(lines()[2]["index"], 2);
  EXPECT_EQ(lines()[3]["cut"], true);
  EXPECT_EQ(lines()[3]["rows"], 3);
  EXPECT_EQ(lines()[4]["index"], 9);
  EXPECT_EQ(lines()[4]["rejected"], 10);

  Rejected long_story = row(1, 0);
  long_story.ref.id = "b/" + std::string(1 << 20, 'k');
  long_story.detail.assign(1 << 20, 'd');
  list(1).add(long_story);
  EXPECT_LT(fs::file_size(file(1)), 3000u);
}

// A list of a million rows is one archive.
TEST_F(RejectedListTest, FewArchivesShareTheLines) {
  auto list = this->list();
  for (std::uint64_t index = 0; index < 90; ++index) list.add(row(0, index));
  for (std::uint64_t index = 0; index < 30; ++index) list.add(row(1, index));
  ASSERT_EQ(lines().size(), 80u);
  EXPECT_EQ(lines()[49]["index"], 49);
  EXPECT_EQ(lines()[50]["archive"], "/data/b.tar");
  EXPECT_FALSE(lines()[79].contains("rejected"));
}

// Some bad rows everywhere fill a list in the first days; what rots later has to be found in it, too.
TEST_F(RejectedListTest, EveryArchiveWithBadRowsIsNamedHoweverLateTheyCome) {
  while (manifest.archives.size() < 1000) {
    Archive archive;
    archive.name = fmt::format("{}", manifest.archives.size());
    archive.path = archive.name + ".tar";
    manifest.archives.push_back(archive);
  }
  for (int life = 0; life < 2; ++life) {
    auto list = this->list(0, 50);
    for (std::uint32_t archive = 0; archive < 900; ++archive)
      for (std::uint64_t index = 0; index < 30; ++index) list.add(row(archive, index));
  }
  std::map<std::string, std::uint64_t> told;
  for (const json& line : lines())
    if (line.contains("archive")) ++told[line["archive"]];
  EXPECT_EQ(told.size(), 900u);
  EXPECT_EQ(told["/data/a.tar"], 20u);
  EXPECT_EQ(told["500.tar"], 2u) << "the 1st and the 10th";
  const auto before = lines().size();
  EXPECT_LT(before, 50u + 2 * 900u);

  auto list = this->list(0, 50);
  list.add(row(950, 3));
  for (std::uint64_t index = 1000; index < 6000; ++index) list.add(row(0, index));
  const auto more = lines();
  ASSERT_EQ(more.size(), before + 3);
  EXPECT_EQ(more[before]["archive"], "950.tar");
  EXPECT_EQ(more[before]["index"], 3);
  EXPECT_EQ(more[before]["rejected"], 1);
  EXPECT_EQ(more[before + 1]["archive"], "/data/a.tar");
  EXPECT_EQ(more[before + 1]["rejected"], 100);
  EXPECT_EQ(more[before + 2]["rejected"], 1000);
}

// Older programs listed nothing behind that line.
TEST_F(RejectedListTest, AListThatAnOlderProgramEndedGoesOn) {
  fs::create_directories(rejected);
  std::ofstream old(file(0));
  for (int index : {0, 1, 2})
    old << R"({"archive":"/data/a.tar","index":)" << index << R"(,"key":null,"offset":null,"reason":"too_large"})"
        << "\n";
  old << R"({"cut":true,"rows":3,"note":"no more rows are listed; ledger.json counts all"})"
      << "\n";
  old.close();
  auto list = this->list(0, 3);
  list.add(row(0, 3));
  list.add(row(1, 0));
  ASSERT_EQ(lines().size(), 5u);
  EXPECT_EQ(lines()[4]["archive"], "/data/b.tar");
}

TEST_F(RejectedListTest, WhereNothingCanBeWrittenTheRunGoesOn) {
  folder.write("rejected", "in the way");
  auto list = this->list();
  list.add(row(0, 1));
  list.add(row(0, 2));
  EXPECT_EQ(read_file(rejected), "in the way");
}

// Two passes with several threads, then a resumed one by the same rank: every bad row of the source once, the filtered
// ones not at all.
TEST_F(RejectedListTest, AStreamListsItsBadRowsOnce) {
  std::vector<Rows> rows(3, Rows(20));
  std::vector<std::string> expected;
  for (std::size_t archive = 0; archive < rows.size(); ++archive) {
    for (std::size_t i = 0; i < rows[archive].size(); i += 3) {
      rows[archive][i] = i % 2 ? RejectReason::filtered : RejectReason::missing_caption;
      if (i % 2 == 0) expected.push_back(fmt::format("{:03}/{}", archive, i));
    }
  }
  const FakeSource source(rows, "this is no image");  // so the others are rejected by transform_sample
  for (std::size_t archive = 0; archive < rows.size(); ++archive)
    for (std::size_t i = 0; i < rows[archive].size(); ++i)
      if (!rows[archive][i]) expected.push_back(fmt::format("{:03}/{}", archive, i));
  const DataPlan plan{source.manifest(), plan_stripes(4, {}, source.manifest())};
  const EpochOrder order(1, plan.stripes);
  for (int life = 0; life < 2; ++life) {
    RejectedList list(rejected, 0, source.manifest());
    StripeStream stream(order, source, {}, {.threads = 3, .block = 2, .epochs = 2, .rejected = &list});
    for (std::uint32_t s = 0; s < plan.stripes.stripes; ++s) stream.add(s, {});
    for (std::uint32_t s = 0; s < plan.stripes.stripes; ++s) EXPECT_FALSE(stream.next(s).has_value());
  }
  std::vector<std::string> listed;
  for (const json& line : lines(0))
    listed.push_back(line["archive"].get<std::string>() + "/" + line["key"].get<std::string>());
  EXPECT_THAT(listed, UnorderedElementsAreArray(expected));
}

// What a storage gives may change between two passes.
TEST_F(RejectedListTest, AStreamListsRowsThatGoBadInALaterPass) {
  struct GoesBad final : SampleSource {
    std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first_row) const override {
      return (opened++ == 0 ? good : bad).open(split, first_row);
    }
    const FakeSource good{std::vector<Rows>{Rows(3)}, test::small_jpeg()};
    const FakeSource bad{std::vector<Rows>{Rows(3, RejectReason::missing_image)}};
    mutable std::atomic<int> opened = 0;
  };
  const GoesBad source;
  const EpochOrder order(1, {1, {{0, 0, 1}}});
  RejectedList list(rejected, 0, source.good.manifest());
  StripeStream stream(order, source, {}, {.threads = 1, .block = 2, .epochs = 2, .rejected = &list});
  stream.add(0, {});
  int samples = 0;
  while (stream.next(0)) ++samples;
  EXPECT_EQ(samples, 3);
  EXPECT_THAT(indices(0), testing::UnorderedElementsAre(0, 1, 2));
}

// A list on storage that hangs: the thread that writes to it waits, everybody else goes on.
TEST_F(RejectedListTest, AStreamDoesNotWaitForTheList) {
  std::vector<Rows> rows(2, Rows(500));
  rows[0][0] = RejectReason::missing_caption;
  const FakeSource source(rows, test::small_jpeg());
  const DataPlan plan{source.manifest(), {2, {{0, 0, 1}, {1, 0, 1}}}};
  const EpochOrder order(1, plan.stripes);
  const std::uint32_t bad = order.splits_of(0, 0).at(0) == 0 ? 0 : 1, good = 1 - bad;
  fs::create_directories(rejected);
  ASSERT_EQ(::mkfifo(file(0).c_str(), 0600), 0);
  RejectedList list(rejected, 0, source.manifest());
  TransformPipeline transforms;
  transforms.transform.resolution = 8;
  StripeStream stream(order, source, transforms, {.threads = 2, .block = 4, .epochs = 1, .rejected = &list});
  stream.add(bad, {});
  stream.add(good, {});
  stream.expect(bad);
  auto all = std::async(std::launch::async, [&] {
    std::size_t count = 0;
    while (stream.next(good)) ++count;
    return count;
  });
  const bool waited = all.wait_for(std::chrono::seconds(100)) != std::future_status::ready;
  const int reader = ::open(file(0).c_str(), O_RDONLY | O_NONBLOCK);  // lets the writer go on
  EXPECT_FALSE(waited);
  EXPECT_EQ(all.get(), 500u);
  EXPECT_TRUE(stream.next(bad).has_value());
  ::close(reader);
}

}  // namespace
}  // namespace millrace
