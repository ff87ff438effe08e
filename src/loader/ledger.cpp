#include "millrace/loader/ledger.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <type_traits>

#include "millrace/core/error.h"
#include "millrace/core/json_text.h"
#include "millrace/loader/data_plan.h"

namespace millrace {

using nlohmann::json;

namespace {

// An outcome is a reason, with this bit when a cache knew it, or the accepted one.
constexpr std::uint8_t accepted_outcome = 0xFF, cached_bit = 0x40;

std::optional<RejectReason> reason_of(std::uint8_t outcome) {
  if (outcome == accepted_outcome) return std::nullopt;
  return static_cast<RejectReason>(outcome & ~cached_bit);
}

bool is_cached(std::uint8_t outcome) {
  return outcome != accepted_outcome && (outcome & cached_bit);
}

// Bytes of a delta, little-endian: u32 runs, u32 non-finite samples, then per run u64 row, u32 split, u32 rows, u8
// outcome, and per non-finite sample u64 hash, u32 archive.
constexpr std::size_t header_bytes = 8, run_bytes = 17, non_finite_bytes = 12;

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T get(std::string_view& in) {
  T value;
  std::memcpy(&value, in.data(), sizeof value);
  in.remove_prefix(sizeof value);
  return value;
}

json counts_json(const RowCounts& counts) {
  json rejected = json::object();
  for (int i = 0; i < reason_count; ++i) {
    if (counts.rejected[i]) rejected[to_string(static_cast<RejectReason>(i))] = counts.rejected[i];
  }
  return {{"rows", counts.rows()}, {"accepted", counts.accepted}, {"rejected", rejected}};
}

RejectReason reason_from_name(const std::string& name) {
  if (const auto reason = try_parse_reject_reason(name)) return *reason;
  fail(Exit::io, "the ledger in the checkpoint knows a reason '{}' that this version does not", name);
}

std::string split_name(const DataPlan& plan, std::uint32_t index) {
  const Split& split = plan.stripes.splits[index];
  const std::string& archive = plan.manifest.archives[split.archive].name;
  return split.count == 1 ? archive : fmt::format("{}:{}/{}", archive, split.index, split.count);
}

// At the end of the last run where it goes on with that, as far as its count goes.
template <class Run>
void add_run(std::vector<Run>& runs, const std::type_identity_t<Run>& run) {
  if (!runs.empty()) {
    Run& last = runs.back();
    const bool goes_on = last.split == run.split && last.outcome == run.outcome && last.row + last.rows == run.row;
    if (goes_on && run.rows <= std::numeric_limits<decltype(last.rows)>::max() - last.rows) {
      last.rows += run.rows;
      return;
    }
  }
  runs.push_back(run);
}

// Without those that do not count as bad.
RowCounts bad_rows_of(RowCounts counts) {
  for (const auto reason : {RejectReason::filtered, RejectReason::too_small})
    counts.rejected[static_cast<int>(reason)] = 0;
  return counts;
}

std::string worst_archives(const Ledger& ledger, const DataPlan& plan) {
  std::vector<std::uint32_t> order(ledger.archives().size());
  std::iota(order.begin(), order.end(), 0u);
  const std::size_t shown = std::min<std::size_t>(3, order.size());
  std::partial_sort(order.begin(), order.begin() + shown, order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const auto bad_a = ledger.archives()[a].bad_rows(), bad_b = ledger.archives()[b].bad_rows();
    return bad_a != bad_b ? bad_a > bad_b : a < b;
  });
  std::string text;
  for (std::uint32_t archive : std::span(order).first(shown)) {
    const RowCounts& counts = ledger.archives()[archive];
    if (counts.bad_rows() == 0) break;
    text += fmt::format("\n  {}: {} of {} rows ({})", plan.manifest.archives[archive].path, counts.bad_rows(),
                        counts.rows(), main_reasons(bad_rows_of(counts)));
  }
  return text;
}

}  // namespace

std::uint64_t RowCounts::rejected_rows() const {
  return std::accumulate(rejected.begin(), rejected.end(), std::uint64_t{0});
}
std::uint64_t RowCounts::rows() const {
  return accepted + rejected_rows();
}
std::uint64_t RowCounts::bad_rows() const {
  return bad_rows_of(*this).rejected_rows();
}

void RowCounts::add(std::optional<RejectReason> reason, std::uint64_t rows) {
  (reason ? rejected[static_cast<int>(*reason)] : accepted) += rows;
}

std::string main_reasons(const RowCounts& counts) {
  std::array<int, reason_count> order;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return counts.rejected[a] > counts.rejected[b]; });
  std::string text;
  for (int i : std::span(order).first(3)) {
    if (counts.rejected[i] == 0) break;
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", counts.rejected[i], to_string(static_cast<RejectReason>(i)));
  }
  return text;
}

// LedgerDelta ------------------------------------------------------------------------------------------------------

void LedgerDelta::add(std::uint32_t split, std::uint64_t row, std::optional<RejectReason> reason, bool cached) {
  std::uint8_t outcome = accepted_outcome;
  if (reason) outcome = static_cast<std::uint8_t>(static_cast<int>(*reason) | (cached ? cached_bit : 0));
  add_run(runs_, {row, split, 1, outcome});
}

void LedgerDelta::add_non_finite(std::uint32_t archive, std::uint64_t sample_hash) {
  non_finite_.push_back({sample_hash, archive});
}

void LedgerDelta::append(const LedgerDelta& later) {
  for (const Run& run : later.runs_) add_run(runs_, run);
  non_finite_.insert(non_finite_.end(), later.non_finite_.begin(), later.non_finite_.end());
}

std::vector<RowRun> LedgerDelta::runs() const {
  std::vector<RowRun> runs;
  for (const Run& run : runs_)
    runs.push_back({run.split, run.row, run.rows, reason_of(run.outcome), is_cached(run.outcome)});
  return runs;
}

std::vector<RejectedRow> fresh_rejections(const LedgerDelta& delta, const StripePlan& plan) {
  std::vector<RejectedRow> rejections;
  for (const RowRun& run : delta.runs()) {
    if (!run.reason || run.cached) continue;
    const Split& split = plan.splits.at(run.split);
    for (std::uint64_t row = run.first; row < run.first + run.rows; ++row)
      rejections.push_back({split.archive, split.index + row * split.count, *run.reason});
  }
  return rejections;
}

LedgerDelta LedgerDelta::take(std::size_t max_bytes) {
  LedgerDelta oldest;
  std::size_t room = max_bytes > header_bytes ? max_bytes - header_bytes : 0;
  const std::size_t runs = std::min(runs_.size(), room / run_bytes);
  oldest.runs_.assign(runs_.begin(), runs_.begin() + runs);
  runs_.erase(runs_.begin(), runs_.begin() + runs);
  if (!runs_.empty()) return oldest;  // a sample is counted as accepted before it is found to be non-finite
  room -= runs * run_bytes;
  const std::size_t losses = std::min(non_finite_.size(), room / non_finite_bytes);
  oldest.non_finite_.assign(non_finite_.begin(), non_finite_.begin() + losses);
  non_finite_.erase(non_finite_.begin(), non_finite_.begin() + losses);
  return oldest;
}

std::string LedgerDelta::to_bytes() const {
  std::string bytes;
  if (empty()) return bytes;
  bytes.reserve(header_bytes + runs_.size() * run_bytes + non_finite_.size() * non_finite_bytes);
  put(bytes, static_cast<std::uint32_t>(runs_.size()));
  put(bytes, static_cast<std::uint32_t>(non_finite_.size()));
  for (const Run& run : runs_) {
    put(bytes, run.row);
    put(bytes, run.split);
    put(bytes, run.rows);
    put(bytes, run.outcome);
  }
  for (const NonFinite& sample : non_finite_) {
    put(bytes, sample.sample_hash);
    put(bytes, sample.archive);
  }
  return bytes;
}

LedgerDelta LedgerDelta::from_bytes(std::string_view bytes) {
  LedgerDelta delta;
  if (bytes.empty()) return delta;
  if (bytes.size() < header_bytes) fail(Exit::io, "ledger delta of {} bytes is cut short", bytes.size());
  const std::size_t runs = get<std::uint32_t>(bytes), losses = get<std::uint32_t>(bytes);
  if (bytes.size() != runs * run_bytes + losses * non_finite_bytes) {
    fail(Exit::io, "ledger delta holds {} bytes where {} runs and {} samples are announced", bytes.size(), runs,
         losses);
  }
  for (std::size_t i = 0; i < runs; ++i) {
    Run run;
    run.row = get<std::uint64_t>(bytes);
    run.split = get<std::uint32_t>(bytes);
    run.rows = get<std::uint32_t>(bytes);
    run.outcome = get<std::uint8_t>(bytes);
    if (run.outcome != accepted_outcome && (run.outcome & ~cached_bit) >= reason_count)
      fail(Exit::io, "ledger delta with unknown reason {}", run.outcome);
    delta.runs_.push_back(run);
  }
  for (std::size_t i = 0; i < losses; ++i) {
    const auto hash = get<std::uint64_t>(bytes);
    delta.add_non_finite(get<std::uint32_t>(bytes), hash);
  }
  return delta;
}

// Ledger -----------------------------------------------------------------------------------------------------------

Ledger::Ledger(const DataPlan& plan)
    : plan_(plan), archives_(plan.manifest.archives.size()), seen_(plan.stripes.splits.size()) {}

void Ledger::count(std::uint32_t archive, std::optional<RejectReason> reason, std::uint64_t rows) {
  archives_[archive].add(reason, rows);
  total_.add(reason, rows);
}

void Ledger::merge(const LedgerDelta& delta) {
  for (const LedgerDelta::Run& run : delta.runs_) {
    if (run.split >= seen_.size()) fail(Exit::io, "ledger delta about split {} of {}", run.split, seen_.size());
    const RowSet::interval_type rows(run.row, run.row + run.rows);
    RowSet known;
    boost::icl::add_intersection(known, seen_[run.split], rows);
    count(plan_.stripes.splits[run.split].archive, reason_of(run.outcome), run.rows - known.size());
    seen_[run.split] += rows;
  }
  for (const LedgerDelta::NonFinite& sample : delta.non_finite_) {
    if (sample.archive >= archives_.size())
      fail(Exit::io, "ledger delta about archive {} of {}", sample.archive, archives_.size());
    if (!non_finite_.insert(sample.sample_hash).second) continue;
    for (RowCounts* counts : {&archives_[sample.archive], &total_}) {
      if (counts->accepted) --counts->accepted;
      counts->add(RejectReason::non_finite);
    }
  }
}

std::string Ledger::report_json() const {
  json report = counts_json(total_);
  json& archives = report["archives"] = json::object();
  for (std::size_t i = 0; i < archives_.size(); ++i) {
    if (archives_[i].rows()) archives[plan_.manifest.archives[i].path] = counts_json(archives_[i]);
  }
  return dump_any(report, 1) + "\n";
}

std::string Ledger::state_json() const {
  json archives = json::object(), seen = json::object();
  for (std::size_t i = 0; i < archives_.size(); ++i) {
    if (archives_[i].rows()) archives[plan_.manifest.archives[i].name] = counts_json(archives_[i]);
  }
  for (std::uint32_t i = 0; i < seen_.size(); ++i) {
    for (const auto& rows : seen_[i]) seen[split_name(plan_, i)].push_back({rows.lower(), rows.upper()});
  }
  const json state = {{"archives", archives}, {"seen", seen}, {"non_finite", non_finite_}};
  return dump_any(state);
}

void Ledger::load_state(std::string_view text) try {
  const json state = json::parse(text);
  Ledger loaded(plan_);
  std::map<std::string, std::uint32_t> archive_of, split_of;
  for (std::uint32_t i = 0; i < archives_.size(); ++i) archive_of[plan_.manifest.archives[i].name] = i;
  for (std::uint32_t i = 0; i < seen_.size(); ++i) split_of[split_name(plan_, i)] = i;
  for (const auto& [name, counts] : state.at("archives").items()) {
    const std::uint32_t archive = archive_of.at(name);
    loaded.count(archive, std::nullopt, counts.at("accepted").get<std::uint64_t>());
    for (const auto& [reason, rows] : counts.at("rejected").items()) {
      loaded.count(archive, reason_from_name(reason), rows.get<std::uint64_t>());
    }
  }
  for (const auto& [name, intervals] : state.at("seen").items())
    for (const auto& [first, end] : intervals.get<std::vector<std::pair<std::uint64_t, std::uint64_t>>>())
      loaded.seen_[split_of.at(name)] += RowSet::interval_type(first, end);
  loaded.non_finite_ = state.at("non_finite").get<std::set<std::uint64_t>>();
  total_ = loaded.total_;
  archives_ = std::move(loaded.archives_);
  seen_ = std::move(loaded.seen_);
  non_finite_ = std::move(loaded.non_finite_);
} catch (const std::out_of_range&) {
  throw Error(Exit::io, "the ledger in the checkpoint names archives or splits that this run does not read",
              "the data or data.stripes have changed since the checkpoint");
} catch (const json::exception& error) {
  fail(Exit::io, "the ledger in the checkpoint cannot be read: {}", error.what());
}

void check_bad_share(const Ledger& ledger, const DataPlan& plan, double max_share, bool pass_ended) {
  constexpr std::uint64_t judged_from = 100;
  const RowCounts& counts = ledger.total();
  if (pass_ended && counts.accepted == 0) {
    throw Error(
        Exit::bad_data,
        fmt::format("none of {} rows can be used: {}{}", counts.rows(),
                    counts.rows() ? main_reasons(counts) : "the archives are empty", worst_archives(ledger, plan)),
        "look into an archive with `millrace inspect`; check data.train.path, data.train.filters and data.images");
  }
  if (counts.rows() < judged_from && !pass_ended) return;
  if (static_cast<double>(counts.bad_rows()) <= max_share * static_cast<double>(counts.rows())) return;
  throw Error(Exit::bad_data,
              fmt::format("{} of {} rows are bad, more than data.max_bad_share = {}: {}{}", counts.bad_rows(),
                          counts.rows(), max_share, main_reasons(bad_rows_of(counts)), worst_archives(ledger, plan)),
              "repair or leave out these archives, or raise data.max_bad_share");
}

}  // namespace millrace
