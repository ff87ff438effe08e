#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "millrace/dataset/sample.h"
#include "millrace/loader/data_plan.h"

// Outcomes of rows, on their way from those who read them to the ledger.
namespace millrace {

// Consecutive rows of one split (an index into the plan's splits) with one outcome: accepted, or the reason why not.
struct RowRun {
  std::uint32_t split = 0;
  std::uint64_t first = 0;
  std::uint32_t rows = 0;
  std::optional<RejectReason> reason;
  bool cached = false;  // a latent cache knew the reason
};

// An accepted sample whose encoding turned out not to be finite.
struct NonFiniteSample {
  std::uint64_t hash = 0;
  std::uint32_t archive = 0;
};

// What producers have seen since their last report. Travels with parcels.
class LedgerDelta {
 public:
  // Row `row` of split `split` was accepted (no reason) or rejected; `cached`: a latent cache knew that.
  void add(std::uint32_t split, std::uint64_t row, std::optional<RejectReason> reason, bool cached = false);
  void add_non_finite(std::uint32_t archive, std::uint64_t sample_hash);
  void append(const LedgerDelta& later);
  bool empty() const { return runs_.empty() && non_finite_.empty(); }
  const std::vector<RowRun>& runs() const& { return runs_; }
  std::vector<RowRun> runs() && { return std::move(runs_); }
  const std::vector<NonFiniteSample>& non_finite() const& { return non_finite_; }

  // Moves the oldest entries that fit into `max_bytes` of to_bytes() out of this one.
  LedgerDelta take(std::size_t max_bytes);
  std::string to_bytes() const;                           // empty when there is nothing new
  static LedgerDelta from_bytes(std::string_view bytes);  // Error(io) when they are damaged

 private:
  void add(const RowRun& run);

  std::vector<RowRun> runs_;
  std::vector<NonFiniteSample> non_finite_;
};

// `row` counts from the beginning of the archive, whatever its splits.
struct RejectedRow {
  std::uint32_t archive = 0;
  std::uint64_t row = 0;
  RejectReason reason = RejectReason::decode_error;
};
// The rejected rows that no latent cache knew.
std::vector<RejectedRow> fresh_rejections(const LedgerDelta& delta, const StripePlan& plan);

}  // namespace millrace
