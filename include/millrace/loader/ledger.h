#pragma once
#include <array>
#include <boost/icl/interval_set.hpp>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/dataset/manifest.h"
#include "millrace/dataset/sample.h"
#include "millrace/loader/data_plan.h"

// What became of every row: accepted, or rejected for a reason.
namespace millrace {

struct RowCounts {
  std::uint64_t accepted = 0;
  std::array<std::uint64_t, reason_count> rejected{};

  std::uint64_t rows() const;
  std::uint64_t rejected_rows() const;
  // Rejected, but not by a filter, and not for being smaller than data.images asks for: no image is smaller than its
  // defaults.
  std::uint64_t bad_rows() const;
  void add(std::optional<RejectReason> reason, std::uint64_t rows = 1);
  bool operator==(const RowCounts&) const = default;
};

// "1204 decode_error, 17 missing_caption": the three most frequent.
std::string main_reasons(const RowCounts& counts);

// Consecutive rows of one split (an index into the plan's splits) with one outcome: accepted, or the reason why not.
struct RowRun {
  std::uint32_t split = 0;
  std::uint64_t first = 0;
  std::uint32_t rows = 0;
  std::optional<RejectReason> reason;
  bool cached = false;  // the reason was known to a latent cache
};

// What producers saw since they last said so. Travels with parcels.
class LedgerDelta {
 public:
  // Row `row` of split `split` was accepted (no reason) or rejected, perhaps by what a latent cache knew.
  void add(std::uint32_t split, std::uint64_t row, std::optional<RejectReason> reason, bool cached = false);
  // An accepted sample whose encoding turned out not to be finite.
  void add_non_finite(std::uint32_t archive, std::uint64_t sample_hash);
  void append(const LedgerDelta& later);
  bool empty() const { return runs_.empty() && non_finite_.empty(); }
  std::vector<RowRun> runs() const;

  // Moves the oldest entries that fit into `max_bytes` of to_bytes() out of this one.
  LedgerDelta take(std::size_t max_bytes);
  std::string to_bytes() const;                           // empty when there is nothing new
  static LedgerDelta from_bytes(std::string_view bytes);  // Error(io) when they are damaged

 private:
  friend class Ledger;
  struct Run {  // consecutive rows of one split with one outcome
    std::uint64_t row = 0;
    std::uint32_t split = 0;
    std::uint32_t rows = 0;
    std::uint8_t outcome = 0;
  };
  struct NonFinite {
    std::uint64_t sample_hash = 0;
    std::uint32_t archive = 0;
  };
  std::vector<Run> runs_;
  std::vector<NonFinite> non_finite_;
};

// A row of an archive, all splits counted.
struct RejectedRow {
  std::uint32_t archive = 0;
  std::uint64_t row = 0;
  RejectReason reason = RejectReason::decode_error;
};
// Those that no latent cache knew.
std::vector<RejectedRow> fresh_rejections(const LedgerDelta& delta, const StripePlan& plan);

// Counts per archive over distinct rows. The ledger knows which rows of each split it has counted, so rows that are
// read again (after a resume, by another producer, in a later epoch) are not counted again, in whatever order they
// come. `plan` must outlive it.
class Ledger {
 public:
  explicit Ledger(const DataPlan& plan);

  void merge(const LedgerDelta& delta);
  const RowCounts& total() const { return total_; }
  const std::vector<RowCounts>& archives() const { return archives_; }

  std::string report_json() const;         // the content of ledger.json
  std::string state_json() const;          // what a checkpoint keeps
  void load_state(std::string_view text);  // Error(io) when it does not fit the plan

 private:
  // Rows come nearly in order, so that a split's are one interval and the few rows that are ahead of it.
  using RowSet = boost::icl::interval_set<std::uint64_t, std::less, boost::icl::right_open_interval<std::uint64_t>>;

  void count(std::uint32_t archive, std::optional<RejectReason> reason, std::uint64_t rows);

  const DataPlan& plan_;
  RowCounts total_;
  std::vector<RowCounts> archives_;
  std::vector<RowSet> seen_;            // per split: rows counted
  std::set<std::uint64_t> non_finite_;  // hashes of the samples moved from accepted to rejected
};

// Error(bad_data) naming the main reasons and the worst archives when more than `max_share` of the rows are bad (judged
// from 100 rows on), or, at the end of a pass, when that is so for any number of rows or nothing was accepted.
void check_bad_share(const Ledger& ledger, const DataPlan& plan, double max_share, bool pass_ended = false);

}  // namespace millrace
