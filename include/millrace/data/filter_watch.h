#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "millrace/data/filter.h"

namespace millrace {

// Notices filters that keep nothing, such as those on a field with another name in this data set, and warns once: after
// the first 1,000 rows. Safe to use from several threads.
class FilterWatch {
 public:
  explicit FilterWatch(const Filter& filter) : filter_(filter) {}

  // A row with the metadata `json` was judged.
  void count(Filter::Verdict verdict, std::string_view json);
  // The search for samples has failed: warns of filters that have dropped all rows, however few they were.
  void warn_now();

 private:
  void warn(std::uint64_t rows);

  const Filter& filter_;
  std::atomic<bool> kept_ = false;  // a row, ever
  std::mutex mutex_;
  std::uint64_t dropped_ = 0;  // before the first row was kept
  bool warned_ = false;
  std::string first_;  // why the first of them was dropped
};

}  // namespace millrace
