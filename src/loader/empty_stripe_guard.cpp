#include "empty_stripe_guard.h"

#include <algorithm>

#include "millrace/core/error.h"

namespace millrace {

void EmptyStripeGuard::end_epoch(std::uint32_t epoch, const FilterWatch* filters, const std::string& section) {
  constexpr std::size_t enough_splits = 64;
  if (counts_.accepted) {
    *this = EmptyStripeGuard(*order_, stripe_);
    return;
  }
  const std::vector<std::uint32_t> splits = order_->splits_of(stripe_, epoch);
  if (splits.empty()) return;
  splits_.insert(splits.begin(), splits.end());
  ++epochs_;
  if (epochs_ < 3 || splits_.size() < std::min(enough_splits, order_->plan().splits.size())) return;
  const std::string drops = filters ? filters->report() : "";
  throw Error(Exit::bad_data,
              fmt::format("stripe {} found no usable sample in {} passes over {} archives or splits: {}{}{}", stripe_,
                          epochs_, splits_.size(), counts_.rows() ? main_reasons(counts_) : "they are empty",
                          drops.empty() ? "" : "\n", drops),
              advice_on_unusable(counts_, section));
}

}  // namespace millrace
