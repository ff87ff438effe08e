#pragma once
#include <boost/icl/interval_set.hpp>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/loader/data_plan.h"
#include "millrace/loader/ledger_delta.h"
#include "millrace/loader/row_counts.h"

namespace millrace {

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
  // Fewer of them would not tell whether many are bad.
  static constexpr std::uint64_t recent_from = 10'000;

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

}  // namespace millrace
