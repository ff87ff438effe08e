#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/json_text.h"
#include "millrace/loader/bad_share.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/ledger.h"
#include "millrace/loader/row_counts.h"

namespace millrace {
namespace {

using nlohmann::json;
using testing::HasSubstr;

DataPlan two_archives() {
  DataPlan plan;
  plan.manifest.archives = {{.path = "/data/a.tar", .name = "a", .rows = {}, .limit = {}},
                            {.path = "/data/b.tar", .name = "b", .rows = {}, .limit = {}}};
  plan.stripes = {3, {{0, 0, 1}, {1, 0, 2}, {1, 1, 2}}};
  return plan;
}

TEST(Ledger, ReportHasTheDocumentedForm) {
  const DataPlan plan = two_archives();
  Ledger ledger(plan);
  LedgerDelta delta;
  for (int row = 0; row < 5; ++row) delta.add(0, row, std::nullopt);
  delta.add(0, 5, RejectReason::decode_error);
  delta.add(2, 0, RejectReason::filtered);
  ledger.merge(delta);
  EXPECT_EQ(json::parse(ledger.report_json()),
            json::parse(R"({"rows": 7, "accepted": 5, "rejected": {"decode_error": 1, "filtered": 1},
    "archives": {"/data/a.tar": {"rows": 6, "accepted": 5, "rejected": {"decode_error": 1}},
                 "/data/b.tar": {"rows": 1, "accepted": 0, "rejected": {"filtered": 1}}}})"));
}

// Rows are read again from wherever a block began, delta travel in pieces and through bytes, checkpoints come in
// between: every row still counts once.
TEST(Ledger, CountsDistinctRowsHoweverOftenTheyAreRead) {
  const DataPlan plan = two_archives();
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::vector<std::optional<RejectReason>>> splits(3);
    RowCounts expected;
    for (auto& rows : splits) {
      rows.resize(random() % 50);
      for (auto& row : rows) {
        if (random() % 3 == 0) row = static_cast<RejectReason>(random() % reason_count);
        expected.add(row);
      }
    }
    Ledger ledger(plan);
    for (std::uint32_t split = 0; split < 3; ++split) {
      std::size_t at = 0;
      while (at < splits[split].size()) {
        LedgerDelta delta;
        const std::size_t end = std::min(splits[split].size(), at + 1 + random() % 20);
        std::vector<std::size_t> rows(end - at);
        std::iota(rows.begin(), rows.end(), at);
        if (random() % 2) std::shuffle(rows.begin(), rows.end(), random);  // as a shuffled block gives them out
        for (const std::size_t row : rows) delta.add(split, row, splits[split][row], random() % 2 == 0);
        at = end;
        while (!delta.empty()) ledger.merge(LedgerDelta::from_bytes(delta.take(64).to_bytes()));
        if (at < splits[split].size()) at -= random() % (at + 1);
        if (random() % 4 == 0) {
          const std::string state = ledger.state_json();
          Ledger restored(plan);
          restored.load_state(state);
          EXPECT_EQ(restored.state_json(), state);
          ledger.load_state(state);
        }
      }
    }
    ASSERT_EQ(ledger.total(), expected) << "seed " << seed;
  }
}

TEST(LedgerDelta, FreshRejectionsAreRowsOfArchivesThatNoCacheKnew) {
  LedgerDelta delta;
  delta.add(2, 0, std::nullopt);
  for (const std::uint64_t row : {1, 2, 3}) delta.add(2, row, RejectReason::filtered, row == 2);
  delta.add(0, 5, RejectReason::non_finite, true);
  delta.add(0, 6, RejectReason::decode_error);
  std::vector<std::string> rows;
  for (const auto& [archive, row, reason] :
       fresh_rejections(LedgerDelta::from_bytes(delta.to_bytes()), two_archives().stripes))
    rows.push_back(fmt::format("{} {} {}", archive, row, to_string(reason)));
  EXPECT_THAT(rows, testing::ElementsAre("1 3 filtered", "1 7 filtered", "0 6 decode_error"));
}

TEST(Ledger, NonFiniteSamplesMoveOnce) {
  const DataPlan plan = two_archives();
  Ledger ledger(plan);
  LedgerDelta delta;
  delta.add(1, 0, std::nullopt);
  delta.add(1, 1, std::nullopt);
  delta.add_non_finite(1, 77);
  ledger.merge(delta);
  LedgerDelta again;
  again.add_non_finite(1, 77);
  ledger.merge(again);
  EXPECT_EQ(ledger.total().accepted, 1u);
  EXPECT_EQ(ledger.total().rejected[static_cast<int>(RejectReason::non_finite)], 1u);
  EXPECT_EQ(ledger.total().rows(), 2u);
}

TEST(LedgerDelta, TakeKeepsTheBoundAndTheOrder) {
  LedgerDelta delta;
  for (int row = 0; row < 100; ++row)
    delta.add(0, row, row % 2 ? std::optional(RejectReason::too_small) : std::nullopt);
  delta.add_non_finite(0, 5);
  const std::string whole = delta.to_bytes();
  constexpr std::size_t bound = 8 + 12 * 17 + 12;  // twelve rows, and room for the sample that is not finite
  LedgerDelta joined;
  std::size_t pieces = 0;
  for (; !delta.empty(); ++pieces) {
    const LedgerDelta piece = delta.take(bound);
    ASSERT_LE(piece.to_bytes().size(), bound);
    ASSERT_FALSE(piece.empty());
    EXPECT_EQ(piece.non_finite().size(), delta.empty() ? 1u : 0u) << "behind all rows: its own is among them";
    joined.append(piece);
  }
  EXPECT_EQ(pieces, 9u);
  EXPECT_EQ(joined.to_bytes(), whole);
  EXPECT_EQ(LedgerDelta().to_bytes(), "");
}

// A run travels as 17 bytes: resuming brings one row after the other, of millions.
TEST(LedgerDelta, AppendingTheRowsThatFollowMakesOneRun) {
  const auto of_row = [](std::uint32_t split, std::uint64_t row, std::optional<RejectReason> reason,
                         bool cached = false) {
    LedgerDelta delta;
    delta.add(split, row, reason, cached);
    return delta;
  };
  LedgerDelta all;
  for (std::uint64_t row = 7; row < 1007; ++row) all.append(of_row(1, row, std::nullopt));
  ASSERT_EQ(all.runs().size(), 1u);
  EXPECT_EQ(all.runs()[0].first, 7u);
  EXPECT_EQ(all.runs()[0].rows, 1000u);

  all.append(of_row(2, 1007, std::nullopt));                   // another split
  all.append(of_row(2, 1008, RejectReason::too_small));        // another outcome
  all.append(of_row(2, 1009, RejectReason::too_small, true));  // the same, but a cache knew it
  all.append(of_row(2, 1011, RejectReason::too_small, true));  // a gap
  LedgerDelta two = of_row(2, 1012, RejectReason::too_small, true);
  two.add(0, 3, std::nullopt);
  all.append(two);
  all.append({});
  std::vector<std::string> runs;
  for (const RowRun& run : all.runs())
    runs.push_back(fmt::format("{} {}+{} {}{}", run.split, run.first, run.rows,
                               run.reason ? to_string(*run.reason) : "accepted", run.cached ? " cached" : ""));
  EXPECT_THAT(runs, testing::ElementsAre("1 7+1000 accepted", "2 1007+1 accepted", "2 1008+1 too_small",
                                         "2 1009+1 too_small cached", "2 1011+2 too_small cached", "0 3+1 accepted"));
}

// One run of `rows` rows of split 0 as it travels: the count has 32 bits.
std::string bytes_of_run(std::uint64_t first, std::uint32_t rows, std::optional<RejectReason> reason = std::nullopt) {
  LedgerDelta delta;
  delta.add(0, first, reason);
  std::string bytes = delta.to_bytes();
  std::memcpy(bytes.data() + 8 + 12, &rows, sizeof rows);
  return bytes;
}

TEST(LedgerDelta, ARunCountsNoMoreRowsThanFit) {
  constexpr std::uint32_t most = 0xFFFFFFFF;
  LedgerDelta all = LedgerDelta::from_bytes(bytes_of_run(0, most - 2));
  all.append(LedgerDelta::from_bytes(bytes_of_run(most - 2, 2)));
  ASSERT_EQ(all.runs().size(), 1u);
  EXPECT_EQ(all.runs()[0].rows, most);
  all.append(LedgerDelta::from_bytes(bytes_of_run(most, 1)));
  ASSERT_EQ(all.runs().size(), 2u);
  EXPECT_EQ(all.runs()[0].rows, most);
  EXPECT_EQ(all.runs()[1].first, most);
  EXPECT_EQ(all.runs()[1].rows, 1u);
}

TEST(LedgerDelta, DamagedBytesAreRefused) {
  LedgerDelta delta;
  delta.add(0, 0, RejectReason::filtered);
  const std::string bytes = delta.to_bytes();
  EXPECT_THROW(LedgerDelta::from_bytes(bytes.substr(0, 5)), Error);
  EXPECT_THROW(LedgerDelta::from_bytes(bytes.substr(0, bytes.size() - 1)), Error);
  EXPECT_THROW(LedgerDelta::from_bytes(bytes + "x"), Error);
  EXPECT_THROW(LedgerDelta::from_bytes(bytes.substr(0, bytes.size() - 1) + "\x63"), Error);
}

TEST(Ledger, StateOfOtherDataIsRefused) {
  const DataPlan plan = two_archives();
  Ledger ledger(plan);
  EXPECT_THROW(ledger.load_state(R"({"archives": {}, "seen": {"c": 4}, "non_finite": []})"), Error);
  EXPECT_THROW(ledger.load_state("{"), Error);
}

std::string message_of(const Ledger& ledger, const DataPlan& plan, double max_share, bool pass_ended) {
  try {
    check_bad_share(ledger, plan, max_share, pass_ended);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_data);
    return error.what();
  }
  return "";
}

TEST(BadShare, IsJudgedFromAHundredRowsOnAndNamesTheCulprits) {
  const DataPlan plan = two_archives();
  Ledger ledger(plan);
  LedgerDelta delta;
  for (int row = 0; row < 60; ++row) delta.add(0, row, std::nullopt);
  for (int row = 0; row < 39; ++row)
    delta.add(1, row, row < 30 ? RejectReason::decode_error : RejectReason::missing_caption);
  ledger.merge(delta);
  EXPECT_EQ(message_of(ledger, plan, 0.2, false), "");
  EXPECT_THAT(message_of(ledger, plan, 0.2, true), HasSubstr("39 of 99"));  // at the end of a pass any number counts
  LedgerDelta more;
  more.add(0, 60, std::nullopt);
  ledger.merge(more);
  const std::string message = message_of(ledger, plan, 0.2, false);
  EXPECT_THAT(message, HasSubstr("39 of 100 rows are bad"));
  EXPECT_THAT(message, HasSubstr("30 decode_error, 9 missing_caption"));
  EXPECT_THAT(message, HasSubstr("/data/b.tar"));
  EXPECT_EQ(message_of(ledger, plan, 0.39, false), "");
}

TEST(BadShare, FilteredRowsAreNotBadButAPassNeedsOneSample) {
  const DataPlan plan = two_archives();
  Ledger ledger(plan);
  LedgerDelta delta;
  for (int row = 0; row < 150; ++row) delta.add(0, row, RejectReason::filtered);
  ledger.merge(delta);
  EXPECT_EQ(message_of(ledger, plan, 0.2, false), "");
  EXPECT_THAT(message_of(ledger, plan, 0.2, true), HasSubstr("none of 150 rows"));
  EXPECT_THAT(message_of(Ledger(plan), plan, 0.2, true), HasSubstr("empty"));
}

// Only who sets data.images.min_side or min_pixels has such rows.
TEST(BadShare, RowsThatAreTooSmallAreLeftOutAsFilteredOnesAre) {
  const DataPlan plan = two_archives();
  Ledger ledger(plan);
  LedgerDelta delta;
  for (int row = 0; row < 150; ++row)
    delta.add(0, row, row < 50 ? std::optional<RejectReason>() : RejectReason::too_small);
  ledger.merge(delta);
  EXPECT_EQ(ledger.total().rejected_rows(), 100u);
  EXPECT_EQ(ledger.total().bad_rows(), 0u);
  EXPECT_EQ(message_of(ledger, plan, 0, true), "");
  LedgerDelta large;
  large.add(1, 0, RejectReason::too_large);
  ledger.merge(large);
  EXPECT_THAT(message_of(ledger, plan, 0, true), HasSubstr("1 of 151 rows are bad"));
}

// A storage that is restored with zeros in place of half of the images: the rows were counted when they were good.
TEST(BadShare, RowsThatGoBadInALaterPassAreNoticed) {
  const DataPlan plan = two_archives();
  Ledger ledger(plan);
  ledger.merge(LedgerDelta::from_bytes(bytes_of_run(0, 20'000)));
  EXPECT_EQ(message_of(ledger, plan, 0.2, false), "");
  ledger.merge(LedgerDelta::from_bytes(bytes_of_run(0, 8'000, RejectReason::decode_error)));
  EXPECT_EQ(ledger.total().bad_rows(), 0u);
  EXPECT_EQ(message_of(ledger, plan, 0.2, true), "") << "a part may be worse than the whole";
  EXPECT_NE(message_of(ledger, plan, 0.1, false), "");
  ledger.merge(LedgerDelta::from_bytes(bytes_of_run(8'000, 8'000, RejectReason::decode_error)));
  const std::string message = message_of(ledger, plan, 0.2, false);
  EXPECT_THAT(message, HasSubstr("16000 of the last 36000 rows are bad, more than 0.4 (up to twice data.max_bad_share "
                                 "= 0.2, as so few may be worse than all): 16000 "));
  EXPECT_THAT(message, HasSubstr("/data/a.tar: 16000 of 36000 rows"));
  EXPECT_EQ(message_of(ledger, plan, 0.5, true), "") << "of 0.75";
  const json report = json::parse(ledger.report_json());
  EXPECT_EQ(report["rows"], 20'000);
  EXPECT_EQ(report["recent"],
            json::parse(R"({"rows": 36000, "accepted": 20000, "rejected": {"decode_error": 16000}})"));

  Ledger resumed(plan);
  resumed.load_state(ledger.state_json());
  EXPECT_EQ(resumed.state_json(), ledger.state_json());
  EXPECT_EQ(message_of(resumed, plan, 0.2, false), message);
  json older = json::parse(ledger.state_json());
  older.erase("recent");
  older.erase("newest");
  resumed.load_state(older.dump());
  EXPECT_EQ(resumed.total(), ledger.total());
  EXPECT_EQ(resumed.recent().total.rows(), 0u);
}

// Of all rows even a source that is bad throughout is no large share then.
TEST(BadShare, LateInALongPassTheLastRowsAreJudged) {
  const DataPlan plan = two_archives();
  Ledger ledger(plan);
  constexpr std::uint32_t some = 100'000;
  std::uint64_t row = 0;
  for (int i = 0; i < 90; ++i, row += some) {
    ledger.merge(LedgerDelta::from_bytes(bytes_of_run(row, some)));
    EXPECT_EQ(ledger.recent().total.rows(), i < 9 ? (i + 1) * some : some * (5 + (i + 1) % 5));
  }
  EXPECT_EQ(ledger.total().accepted, 90u * some);
  for (int i = 0; i < 4; ++i, row += some) {
    EXPECT_EQ(message_of(ledger, plan, 0.2, false), "");
    ledger.merge(LedgerDelta::from_bytes(bytes_of_run(row, some, RejectReason::not_an_image)));
  }
  EXPECT_LT(ledger.total().bad_rows(), ledger.total().rows() / 20);
  EXPECT_THAT(message_of(ledger, plan, 0.2, false), HasSubstr("400000 of the last 900000 rows"));
}

TEST(Ledger, ASampleThatIsNotFiniteInALaterPassIsOneOfTheLast) {
  const DataPlan plan = two_archives();
  Ledger ledger(plan);
  LedgerDelta delta;
  delta.add(1, 0, std::nullopt);
  delta.add_non_finite(1, 77);
  ledger.merge(delta);
  ledger.merge(delta);
  EXPECT_EQ(ledger.total().rows(), 1u);
  EXPECT_EQ(ledger.recent().total.rejected[static_cast<int>(RejectReason::non_finite)], 2u);
  EXPECT_EQ(ledger.recent().archives[1].rows(), 2u);
}

// It may have been accepted before the last rows.
TEST(RowTally, KeepsTheSumOfItsArchives) {
  RowTally tally(2);
  tally.add(0, std::nullopt, 5);
  tally.add_non_finite(1);
  tally.add_non_finite(0);
  EXPECT_EQ(tally.total.accepted, 4u);
  EXPECT_EQ(tally.archives[0].rows(), 5u);
  EXPECT_EQ(tally.archives[1].rows(), 1u);
  EXPECT_EQ(tally.total.rows(), 6u);
}

DataPlan plan_of_archives(std::uint32_t count) {
  DataPlan plan;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto name = fmt::to_string(i);
    plan.manifest.archives.push_back({.path = "/" + name, .name = name, .rows = {}, .limit = {}});
    plan.stripes.splits.push_back({i, 0, 1});
  }
  return plan;
}

// The first `rows` of a split.
LedgerDelta same_rows(std::uint32_t split, int rows, std::optional<RejectReason> reason = std::nullopt) {
  LedgerDelta delta;
  for (int row = 0; row < rows; ++row) delta.add(split, row, reason);
  return delta;
}

json counts_as_values(const RowCounts& counts) {
  json rejected = json::object();
  for (int i = 0; i < reason_count; ++i)
    if (counts.rejected[i]) rejected[to_string(static_cast<RejectReason>(i))] = counts.rejected[i];
  return {{"rows", counts.rows()}, {"accepted", counts.accepted}, {"rejected", rejected}};
}

json archives_as_values(const RowTally& tally, const DataPlan& plan, std::string Archive::*label) {
  json archives = json::object();
  for (std::size_t i = 0; i < tally.archives.size(); ++i)
    if (tally.archives[i].rows()) archives[plan.manifest.archives[i].*label] = counts_as_values(tally.archives[i]);
  return archives;
}

// Shows where long texts begin to differ.
void expect_same(const std::string& text, const std::string& expected) {
  const auto same = static_cast<std::size_t>(std::ranges::mismatch(text, expected).in1 - text.begin());
  EXPECT_TRUE(text == expected) << "after " << same << " bytes: " << text.substr(same, 200) << "\nin place of "
                                << expected.substr(same, 200);
}

// Both texts are appended piece by piece: every byte is to be as nlohmann writes it. Of fewer than half a million rows.
void expect_texts_of_values(const Ledger& ledger, const DataPlan& plan, const json& seen, const json& non_finite) {
  const json last = archives_as_values(ledger.recent(), plan, &Archive::name);
  const json state = {{"archives", archives_as_values(ledger.distinct(), plan, &Archive::name)},
                      {"recent", last},
                      {"newest", last},
                      {"seen", seen},
                      {"non_finite", non_finite}};
  expect_same(ledger.state_json(), dump_any(state));
  json report = counts_as_values(ledger.total());
  report["archives"] = archives_as_values(ledger.distinct(), plan, &Archive::path);
  if (ledger.recent().total.rows() >= 10'000) report["recent"] = counts_as_values(ledger.recent().total);
  expect_same(ledger.report_json(), dump_any(report, 1) + "\n");
}

TEST(Ledger, AnEmptyOneIsWrittenAsValuesAre) {
  const DataPlan plan = plan_of_archives(3), none;
  expect_texts_of_values(Ledger(plan), plan, json::object(), json::array());
  expect_texts_of_values(Ledger(none), none, json::object(), json::array());
}

// Names are UTF-8; paths may be any bytes, and come in another order.
TEST(Ledger, OddNamesAreWrittenAsValuesAre) {
  const std::vector<std::string> words = {"plain",
                                          "\"quoted\"",
                                          "back\\slash",
                                          "tab\tand\nline",
                                          "a:0",
                                          "\x01\x1F\x7F",
                                          "caf\u00E9 \u2028\U0001F600",
                                          "a",
                                          "a-b",
                                          "a/b",
                                          "",
                                          " ",
                                          "{",
                                          "\xC2\x80",
                                          "z[1,2]",
                                          "Z"};
  const std::vector<std::string> bytes = {"caf\xE9", "\xF0\x9F", "\xC0\xAF", "\xED\xA0\x80", std::string("nul\0", 4)};
  DataPlan plan;
  json seen;
  LedgerDelta delta;
  for (std::uint32_t i = 0; i < words.size(); ++i) {
    const auto path = fmt::format("/{}/{}{}", words.size() - i, bytes[i % bytes.size()], words[i]);
    plan.manifest.archives.push_back({.path = path, .name = words[i], .rows = {}, .limit = {}});
    const std::uint32_t count = i % 3 + 1;
    for (std::uint32_t index = 0; index < count; ++index) plan.stripes.splits.push_back({i, index, count});
    const auto split = static_cast<std::uint32_t>(plan.stripes.splits.size()) - 1;
    delta.add(split, 0, std::nullopt);
    delta.add(split, 1, static_cast<RejectReason>(i % reason_count));
    delta.add(split, 3, static_cast<RejectReason>((i + 4) % reason_count));
    seen[count == 1 ? words[i] : fmt::format("{}:{}/{}", words[i], count - 1, count)] = {{0, 2}, {3, 4}};
  }
  for (const std::uint64_t hash : {7ull, ~0ull, 1ull << 63}) delta.add_non_finite(0, hash);
  Ledger ledger(plan);
  ledger.merge(delta);
  LedgerDelta again;
  again.add(0, 0, RejectReason::archive_error);  // it was read before
  ledger.merge(again);
  for (int reason = 0; reason < reason_count; ++reason) EXPECT_GT(ledger.total().rejected[reason], 0u);
  expect_texts_of_values(ledger, plan, seen, {7, 1ull << 63, ~0ull});

  Ledger resumed(plan);
  resumed.load_state(ledger.state_json());
  EXPECT_EQ(resumed.state_json(), ledger.state_json());
  EXPECT_EQ(resumed.report_json(), ledger.report_json());
}

TEST(Ledger, ManyArchivesAreWrittenAsValuesAre) {
  const DataPlan plan = plan_of_archives(20'000);  // "10" comes before "2"
  Ledger ledger(plan);
  json seen;
  for (std::uint32_t split = 0; split < 20'000; split += 1 + split % 3) {
    const int rows = static_cast<int>(split % 5) + 1;
    const auto reason = static_cast<RejectReason>(split % reason_count);
    ledger.merge(same_rows(split, rows, split % 7 ? std::nullopt : std::optional(reason)));
    seen[fmt::to_string(split)] = {{0, rows}};
  }
  ASSERT_GT(ledger.recent().total.rows(), 10'000u);
  expect_texts_of_values(ledger, plan, seen, json::array());
}

TEST(BadShare, OfManySmallArchivesTheLastRowsAreJudgedToo) {
  const DataPlan plan = plan_of_archives(8'000);
  Ledger ledger(plan);
  for (std::uint32_t split = 0; split < 8'000; ++split) ledger.merge(same_rows(split, 150));
  EXPECT_EQ(ledger.recent().total.rows(), 1'200'000u - 500'100u) << "3334 archives are half a million rows";
  std::uint32_t split = 0;
  for (; split < 4'000 && message_of(ledger, plan, 0.2, false).empty(); ++split)
    ledger.merge(same_rows(split, 150, RejectReason::not_an_image));
  EXPECT_NEAR(split, 2'000, 10) << "of half a million rows, as the others go";
  Ledger resumed(plan);
  resumed.load_state(ledger.state_json());
  EXPECT_EQ(resumed.state_json(), ledger.state_json());
  EXPECT_EQ(message_of(resumed, plan, 0.2, false), message_of(ledger, plan, 0.2, false));
}

// The mean of the archives without the worst tells nothing of it.
TEST(BadShare, AtTheEndOfALaterPassOneLargeArchiveIsEnough) {
  const DataPlan plan = plan_of_archives(16);
  Ledger ledger(plan);
  for (int pass = 0; pass < 2; ++pass) {
    for (std::uint32_t split = 1; split < 16; ++split) ledger.merge(same_rows(split, 1'000));
    ledger.merge(same_rows(0, 100'000, pass == 0 ? std::nullopt : std::optional(RejectReason::not_an_image)));
  }
  EXPECT_EQ(message_of(ledger, plan, 0.2, false), "");
  EXPECT_THAT(message_of(ledger, plan, 0.2, true), HasSubstr("100000 of the last 230000 rows"));
}

TEST(BadShare, WhereNoRowMayBeBadOneIsEnough) {
  const DataPlan plan = plan_of_archives(16);
  Ledger ledger(plan);
  for (std::uint32_t split = 0; split < 16; ++split) ledger.merge(same_rows(split, 1'000));
  EXPECT_EQ(message_of(ledger, plan, 0, false), "");
  ledger.merge(same_rows(3, 1, RejectReason::decode_error));
  EXPECT_THAT(message_of(ledger, plan, 0, false), HasSubstr("1 of the last 16001 rows"));
  LedgerDelta one;
  one.add(3, 1'000, RejectReason::decode_error);
  ledger.merge(one);
  EXPECT_THAT(message_of(ledger, plan, 0, false), HasSubstr("1 of 16001 rows"));
}

// A ledger of 16 archives: `rows` good rows in each, of the first `bad` ones 10,000 that are bad.
Ledger ledger_with_bad_archives(const DataPlan& plan, std::uint32_t bad, int rows) {
  Ledger ledger(plan);
  for (std::uint32_t split = 0; split < plan.stripes.splits.size(); ++split) {
    const bool is_bad = split < bad;
    ledger.merge(is_bad ? same_rows(split, 10'000, RejectReason::not_an_image) : same_rows(split, rows));
  }
  return ledger;
}

// They are read to their end before their stripes give a sample, so that they come early.
TEST(BadShare, AFewArchivesThatAreBadThroughoutEndNoPass) {
  const DataPlan plan = plan_of_archives(16);
  for (const std::uint32_t bad : {1, 2, 4})
    EXPECT_EQ(message_of(ledger_with_bad_archives(plan, bad, 1'000), plan, 0.2, false), "") << bad;
  EXPECT_THAT(message_of(ledger_with_bad_archives(plan, 5, 1'000), plan, 0.2, false), HasSubstr("50000 of 61000 rows"));
  EXPECT_THAT(message_of(ledger_with_bad_archives(plan, 1, 1'000), plan, 0.2, true), HasSubstr("10000 of 25000 rows"));

  Ledger everywhere(plan);
  LedgerDelta delta;
  for (std::uint32_t split = 0; split < 16; ++split)
    for (int row = 0; row < 8; ++row)
      delta.add(split, row, row < 2 ? std::optional(RejectReason::not_an_image) : std::nullopt);
  everywhere.merge(delta);
  EXPECT_THAT(message_of(everywhere, plan, 0.2, false), HasSubstr("32 of 128 rows"));
}

// Each is one bad row, however many it was to hold.
TEST(BadShare, ArchivesThatBreakAtTheirBeginningCountAsArchives) {
  const auto ledger_of = [](const DataPlan& plan, std::uint32_t lost, std::uint32_t seen) {
    Ledger ledger(plan);
    for (std::uint32_t split = 0; split < seen; ++split)
      ledger.merge(split < lost ? same_rows(split, 1, RejectReason::archive_error) : same_rows(split, 1'000));
    return ledger;
  };
  const DataPlan many = plan_of_archives(200), some = plan_of_archives(12), few = plan_of_archives(4);
  EXPECT_EQ(message_of(ledger_of(many, 40, 100), many, 0.2, false), "");
  EXPECT_EQ(message_of(ledger_of(many, 60, 99), many, 0.2, false), "") << "too few to tell";
  EXPECT_THAT(message_of(ledger_of(many, 41, 100), many, 0.2, false),
              HasSubstr("41 of 100 archives are broken before any row"));
  EXPECT_THAT(message_of(ledger_of(many, 41, 200), many, 0.2, true), HasSubstr("41 of 200 archives"));
  EXPECT_EQ(message_of(ledger_of(some, 1, 12), some, 0.05, true), "") << "one alone";
  EXPECT_EQ(message_of(ledger_of(some, 3, 12), some, 0.2, false), "");
  EXPECT_THAT(message_of(ledger_of(some, 3, 12), some, 0.2, true), HasSubstr("3 of 12 archives"));
  EXPECT_EQ(message_of(ledger_of(few, 3, 4), few, 0.2, true), "") << "what is left is trained on";
  Ledger cut_short(some);
  for (std::uint32_t split = 0; split < 12; ++split) {
    cut_short.merge(same_rows(split, 100));
    LedgerDelta end;
    end.add(split, 100, RejectReason::archive_error);
    cut_short.merge(end);
  }
  EXPECT_EQ(message_of(cut_short, some, 0.2, true), "") << "they have given what they hold";
}

TEST(BadShare, AdviceFitsWhatTheRowsLack) {
  const auto advice = [](std::uint64_t captions, std::uint64_t images, std::uint64_t broken) {
    RowCounts counts;
    counts.add(RejectReason::missing_caption, captions);
    counts.add(RejectReason::missing_image, images);
    counts.add(RejectReason::decode_error, broken);
    counts.add(RejectReason::filtered, 1'000);
    return advice_on_columns(counts, "data.validation");
  };
  EXPECT_THAT(advice(64, 3, 5), testing::AllOf(HasSubstr("data.validation.columns.caption"), HasSubstr("json.KEY")));
  EXPECT_THAT(advice(3, 64, 5), HasSubstr("data.validation.columns.image"));
  EXPECT_THAT(advice(50, 60, 0), HasSubstr("tar --sort=name"));
  EXPECT_THAT(advice(60, 50, 0), HasSubstr("tar --sort=name"));
  EXPECT_EQ(advice(3, 3, 64), "");
  EXPECT_EQ(advice(0, 0, 0), "");
}

}  // namespace
}  // namespace millrace
