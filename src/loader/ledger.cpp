#include "millrace/loader/ledger.h"

#include <utility>

#include "millrace/core/error.h"

namespace millrace {

Ledger::Ledger(const DataPlan& plan)
    : plan_(plan),
      distinct_(plan.manifest.archives.size()),
      recent_(plan.manifest.archives.size()),
      newest_(plan.manifest.archives.size()),
      seen_(plan.stripes.splits.size()) {}

void Ledger::merge(const LedgerDelta& delta) {
  for (const RowRun& run : delta.runs()) {
    if (run.split >= seen_.size()) fail(Exit::io, "ledger delta about split {} of {}", run.split, seen_.size());
    const std::uint32_t archive = plan_.stripes.splits[run.split].archive;
    const RowSet::interval_type rows(run.first, run.first + run.rows);
    RowSet known;
    boost::icl::add_intersection(known, seen_[run.split], rows);
    distinct_.add(archive, run.reason, run.rows - known.size());
    for (RowTally* tally : {&recent_, &newest_}) tally->add(archive, run.reason, run.rows);
    seen_[run.split] += rows;
  }
  for (const auto& [hash, archive] : delta.non_finite()) {
    if (archive >= archives().size()) fail(Exit::io, "ledger delta about archive {} of {}", archive, archives().size());
    for (RowTally* tally : {&recent_, &newest_}) tally->add_non_finite(archive);
    if (non_finite_.insert(hash).second) distinct_.add_non_finite(archive);
  }
  // More than twice as many would tell late whether many are bad.
  constexpr std::uint64_t recent_rows = 500'000;
  if (newest_.total.rows() >= recent_rows) recent_ = std::exchange(newest_, RowTally(archives().size()));
}

}  // namespace millrace
