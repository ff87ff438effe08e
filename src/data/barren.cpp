#include "barren.h"

#include <algorithm>

#include "millrace/core/error.h"

namespace millrace {

void BarrenWatch::end_epoch(std::uint32_t epoch, const FilterWatch* filters) {
  constexpr std::size_t enough_units = 64;
  if (counts_.accepted) {
    *this = BarrenWatch(*deal_, stripe_);
    return;
  }
  const std::vector<std::uint32_t> units = deal_->units_of(stripe_, epoch);
  if (units.empty()) return;
  units_.insert(units.begin(), units.end());
  ++epochs_;
  if (epochs_ < 3 || units_.size() < std::min(enough_units, deal_->plan().units.size())) return;
  const std::string drops = filters ? filters->report() : "";
  throw Error(Exit::bad_data,
              fmt::format("stripe {} found no usable sample in {} passes over {} archives or lanes: {}{}{}", stripe_,
                          epochs_, units_.size(), counts_.rows() ? main_reasons(counts_) : "they are empty",
                          drops.empty() ? "" : "\n", drops),
              "look into an archive with `millrace inspect`; check the path and the filters of the data set");
}

}  // namespace millrace
