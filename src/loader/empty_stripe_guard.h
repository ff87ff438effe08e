#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "millrace/loader/filter_watch.h"
#include "millrace/loader/row_counts.h"
#include "millrace/loader/stripe.h"

namespace millrace {

// Notices a stripe that would search for a sample for ever. A broken archive may leave a stripe without samples for an
// epoch, and by chance for several; so it is an error only after three epochs without a sample, and once every split
// there is has been tried (or so many that the rest will be no better).
class EmptyStripeGuard {
 public:
  EmptyStripeGuard(const EpochOrder& order, std::uint32_t stripe) : order_(&order), stripe_(stripe) {}

  void count(std::optional<RejectReason> reason, std::uint64_t rows) { counts_.add(reason, rows); }
  // Error(bad_data) with what was found instead of samples. `filters`: what is to be said of them, may be null.
  // `section`: that of the data set.
  void end_epoch(std::uint32_t epoch, const FilterWatch* filters, const std::string& section);

 private:
  const EpochOrder* order_;
  std::uint32_t stripe_;
  RowCounts counts_;                // since the last epoch that gave a sample
  std::set<std::uint32_t> splits_;  // assigned to the stripe since then
  int epochs_ = 0;
};

}  // namespace millrace
