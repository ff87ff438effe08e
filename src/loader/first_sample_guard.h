#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "millrace/dataset/sample.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/filter_watch.h"
#include "millrace/loader/row_counts.h"

namespace millrace {

// Notices that a stream finds no first sample. Counts travel with samples, so nobody else would judge its rows
// (check_bad_share). Looks at the rows of all stripes as soon as their outcome is known, and judges once there are so
// many, of so many archives, that they cannot be mere bad luck in data that keep to data.max_bad_share.
class FirstSampleGuard {
 public:
  FirstSampleGuard(const StripePlan& plan, double max_bad_share);

  void count_undecided(std::uint32_t archive);  // a row was read, and waits for a thread to transform it
  void count_rejected(const Rejected& row);     // on reading
  void reject_undecided(const Rejected& row);   // after all
  void found_sample() { found_ = true; }
  // Error(bad_data). `filters`: what is to be said of them, may be null. `section`: that of the data set.
  void judge(const FilterWatch* filters, const std::string& section) const;

 private:
  // This many bad rows show that an archive is bad; fewer count for less: it has just begun, or is small. Not more,
  // since a stripe that nobody waits for reads no further than its block.
  static constexpr std::int64_t telling_rows = 10;
  struct Rows {
    std::int64_t bad = 0, undecided = 0;
    std::int64_t telling() const { return bad > undecided ? std::min(bad, telling_rows) : 0; }
  };
  void add(std::uint32_t archive, int bad, int undecided);

  const double max_bad_share_;
  const std::int64_t enough_telling_;
  bool found_ = false;
  RowCounts counts_;
  std::int64_t undecided_ = 0;
  std::map<std::uint32_t, Rows> archives_;
  std::int64_t telling_ = 0;  // of all archives
  std::string example_;       // the first bad row
};

}  // namespace millrace
