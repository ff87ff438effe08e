#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "millrace/comm/group.h"
#include "millrace/core/stopwatch.h"
#include "millrace/download/failure.h"

namespace millrace {

// What became of the rows asked for: successes, failures by kind, archives. A plain value; `reduce` adds all ranks'.
struct DownloadCounts {
  std::int64_t successes = 0;
  std::array<std::int64_t, failure_kind_count> failures{};
  std::int64_t retryable = 0;                  // of the failures
  std::int64_t shards = 0, shards_before = 0;  // written, and those that were finished when the run began

  std::int64_t rows() const;
  // "84.2% of 34,000 rows, http status 9.1%, timeout 3.0%": the share of successes and the most frequent failures.
  std::string describe() const;
};
DownloadCounts reduce(const Group& group, const DownloadCounts& mine);

// What a rank is at.
struct DownloadState {
  int ranks = 1;
  std::size_t list = 1, lists = 1;  // the one that is read, of so many
  std::size_t waiting_rows = 0, transfers = 0;
  const char* pause = "";  // for whom no rows are read; empty = they are
};

// Counts from any thread, and a line now and then: redrawn on a terminal, else one every ten seconds.
class DownloadProgress {
 public:
  void add_success() { ++successes_; }
  void add(const Failure& failure) {
    ++failures_[static_cast<std::size_t>(failure.kind)];
    retryable_ += is_retryable(failure);
  }
  void add_shard() { ++shards_; }
  void add_shard_before() { ++shards_before_; }

  DownloadCounts counts() const;
  // Called often by one thread of the first rank.
  void show(const DownloadState& state);
  // The line itself.
  std::string describe(const DownloadState& state) const;
  double seconds() const;

 private:
  std::atomic<std::int64_t> successes_{0}, retryable_{0}, shards_{0}, shards_before_{0};
  std::array<std::atomic<std::int64_t>, failure_kind_count> failures_{};
  const Stopwatch since_start_{};
  double last_line_seconds_ = 0;
};

}  // namespace millrace
