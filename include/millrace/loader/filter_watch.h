#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "millrace/dataset/filter.h"

namespace millrace {

// Notices filters that keep nothing, for instance because a field has another name in this data set, and can tell how
// many rows each of them drops. Warns once, after the first 1,000 rows. Also warns once if filters begin to drop nearly
// everything: more than 90 % of 10,000 rows, when of all rows before no more than 80 % were dropped and at least twice
// as many kept. Safe to use from several threads.
class FilterWatch {
 public:
  explicit FilterWatch(const Filter& filter) : filter_(filter), conditions_(filter.size()) {}

  // A row with the metadata `json` was judged. One that is dropped again in a later pass counts once for report().
  void count(Filter::Verdict verdict, std::string_view json, std::uint64_t row_hash);

  // Each filter with the number of rows that it drops by itself and up to three values it saw in them; empty when a row
  // was kept, or none was read.
  std::string report() const;

 private:
  struct Tally {
    std::uint64_t dropped = 0;
    std::vector<std::string> seen;  // the first three different ones
  };

  static void add(std::vector<Tally>& tallies, std::vector<std::optional<std::string>> missed);
  std::string describe_drops() const;
  void look_back(Filter::Verdict verdict, std::string_view json);
  void judge_window();

  const Filter& filter_;
  std::atomic<bool> kept_ = false;  // a row, ever
  mutable std::mutex mutex_;
  std::unordered_set<std::uint64_t> rows_;  // hashes of those dropped before the first was kept
  std::uint64_t without_json_ = 0;
  std::vector<Tally> conditions_;
  std::string keys_;  // of the first row that has some

  static constexpr std::uint64_t window = 10'000;
  std::uint64_t judged_ = 0, dropped_ = 0, dropped_before_ = 0;  // rows; before: as the last window ended
  double share_ = 0, share_before_ = 0;                          // of rows dropped in the last window, and before it
  std::vector<Tally> lately_;                                    // of the rows behind a window that stood out
  std::atomic<bool> has_warned_ = false;
};

}  // namespace millrace
