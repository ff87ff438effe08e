#include "millrace/loader/ledger_delta.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "millrace/core/error.h"

namespace millrace {

namespace {

// Bytes of a delta, little-endian: u32 runs, u32 non-finite samples, then per run u64 row, u32 split, u32 rows, u8
// outcome, and per non-finite sample u64 hash, u32 archive. An outcome is a reason, with this bit when a cache knew it,
// or the accepted one.
constexpr std::size_t header_bytes = 8, run_bytes = 17, non_finite_bytes = 12;
constexpr std::uint8_t accepted_outcome = 0xFF, cached_bit = 0x40;

std::uint8_t outcome_of(const RowRun& run) {
  if (!run.reason) return accepted_outcome;
  return static_cast<std::uint8_t>(static_cast<int>(*run.reason) | (run.cached ? cached_bit : 0));
}

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

RowRun get_run(std::string_view& in) {
  RowRun run;
  run.first = get<std::uint64_t>(in);
  run.split = get<std::uint32_t>(in);
  run.rows = get<std::uint32_t>(in);
  const auto outcome = get<std::uint8_t>(in);
  if (outcome == accepted_outcome) return run;
  const int reason = outcome & ~cached_bit;
  if (reason >= reason_count) fail(Exit::io, "ledger delta with unknown reason {}", outcome);
  run.reason = static_cast<RejectReason>(reason);
  run.cached = (outcome & cached_bit) != 0;
  return run;
}

}  // namespace

void LedgerDelta::add(std::uint32_t split, std::uint64_t row, std::optional<RejectReason> reason, bool cached) {
  add({split, row, 1, reason, reason && cached});
}

// At the end of the last run where it goes on with that, as far as its count goes.
void LedgerDelta::add(const RowRun& run) {
  if (!runs_.empty()) {
    RowRun& last = runs_.back();
    const bool goes_on = last.split == run.split && last.reason == run.reason && last.cached == run.cached &&
                         last.first + last.rows == run.first;
    if (goes_on && run.rows <= std::numeric_limits<decltype(last.rows)>::max() - last.rows) {
      last.rows += run.rows;
      return;
    }
  }
  runs_.push_back(run);
}

void LedgerDelta::add_non_finite(std::uint32_t archive, std::uint64_t sample_hash) {
  non_finite_.push_back({sample_hash, archive});
}

void LedgerDelta::append(const LedgerDelta& later) {
  for (const RowRun& run : later.runs_) add(run);
  non_finite_.insert(non_finite_.end(), later.non_finite_.begin(), later.non_finite_.end());
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
  for (const RowRun& run : runs_) {
    put(bytes, run.first);
    put(bytes, run.split);
    put(bytes, run.rows);
    put(bytes, outcome_of(run));
  }
  for (const NonFiniteSample& sample : non_finite_) {
    put(bytes, sample.hash);
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
  for (std::size_t i = 0; i < runs; ++i) delta.runs_.push_back(get_run(bytes));
  for (std::size_t i = 0; i < losses; ++i) {
    const auto hash = get<std::uint64_t>(bytes);
    delta.add_non_finite(get<std::uint32_t>(bytes), hash);
  }
  return delta;
}

std::vector<RejectedRow> fresh_rejections(const LedgerDelta& delta, const StripePlan& plan) {
  std::vector<RejectedRow> rejections;
  for (const RowRun& run : delta.runs()) {
    if (!run.reason || run.cached) continue;
    const Split& split = plan.splits.at(run.split);
    for (std::uint64_t row = run.first; row < run.first + run.rows; ++row)
      rejections.push_back({split.archive, split.row(row), *run.reason});
  }
  return rejections;
}

}  // namespace millrace
