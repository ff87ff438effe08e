#pragma once
#include <array>
#include <boost/icl/interval_set.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/dataset/manifest.h"
#include "millrace/dataset/sample.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/ledger_delta.h"

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

// Rows by what became of them, of each archive of the manifest and of all.
struct RowTally {
  explicit RowTally(std::size_t archives = 0) : archives(archives) {}

  RowCounts total;
  std::vector<RowCounts> archives;

  void add(std::uint32_t archive, std::optional<RejectReason> reason, std::uint64_t rows);
  // One accepted sample turned out not to be finite.
  void add_non_finite(std::uint32_t archive);
};

// What to do about rows that lack what the columns name, as `section` spells these, such as "data.train"; empty where
// most rows are bad for other reasons.
std::string advice_on_columns(const RowCounts& counts, std::string_view section);
// What to do where no row can be used.
std::string advice_on_unusable(const RowCounts& counts, std::string_view section);

// Counts per archive over distinct rows. The ledger knows which rows of each split it has counted, so rows that are
// read again (after a resume, by another producer, in a later epoch) are not counted again, in whatever order they
// come. Beside these it keeps the tally of the rows that came last, read again or not: in a later pass, or behind a
// billion of good rows, they alone tell of archives that have gone bad. `plan` must outlive it.
class Ledger {
 public:
  explicit Ledger(const DataPlan& plan);

  void merge(const LedgerDelta& delta);
  const RowCounts& total() const { return distinct_.total; }
  const std::vector<RowCounts>& archives() const { return distinct_.archives; }
  const RowTally& distinct() const { return distinct_; }
  // The last half to one million rows. The same row may count twice: rows between the last sample used and the last one
  // read are told of again after a resume.
  const RowTally& recent() const { return recent_; }

  std::string report_json() const;         // the content of ledger.json
  std::string state_json() const;          // what a checkpoint keeps
  void load_state(std::string_view text);  // Error(io) when it does not fit the plan

 private:
  // Rows come nearly in order, so that a split's are one interval and the few rows that are ahead of it.
  using RowSet = boost::icl::interval_set<std::uint64_t, std::less, boost::icl::right_open_interval<std::uint64_t>>;

  const DataPlan& plan_;
  RowTally distinct_, recent_;
  RowTally newest_;                     // the last of recent_, and all of it once these are half a million rows
  std::vector<RowSet> seen_;            // per split: rows counted
  std::set<std::uint64_t> non_finite_;  // hashes of the samples moved from accepted to rejected
};

// NOTE [Judging bad rows] Error(bad_data) naming the main reasons and the worst archives when more than `max_share` of
// the distinct rows are bad, judged from 100 on, at the end of a pass of any number; then also when nothing was
// accepted. And when of the rows that came last, from 10,000 on, more than twice this share is bad, at most half of the
// way from it to 1: there are many such parts of the whole, and some are worse by chance.
//   A stripe reads an archive that is bad throughout to its end before it gives a sample, so that such archives come
// early: one of a hundred can make a third of the first rows. Within a pass their mean share has to be too large, too,
// each archive counting alike and the worst of them left out, where there are more than a few and some rows may be bad.
void check_bad_share(const Ledger& ledger, const DataPlan& plan, double max_share, bool pass_ended = false);

}  // namespace millrace
