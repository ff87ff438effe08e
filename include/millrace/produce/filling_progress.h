#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "millrace/checkpoint/run_lease.h"
#include "millrace/comm/group.h"
#include "millrace/core/stopwatch.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/ledger.h"

namespace millrace {

// What all ranks that fill a cache have done together, counted by rank 0; the others only send their deltas. Rank 0
// keeps RUN/ledger.json, and removes RUN/DONE as soon as something new comes into the cache, while the folder is ours.
class FillingProgress {
 public:
  // `group`, `data` and `lease` must outlive it.
  FillingProgress(const Group& group, const DataPlan& data, double max_bad_share, std::filesystem::path run_dir,
                  const RunLease& lease)
      : group_(group),
        data_(data),
        max_bad_share_(max_bad_share),
        run_dir_(std::move(run_dir)),
        lease_(lease),
        ledger_(data) {}

  const Ledger& ledger() const { return ledger_; }

  // Adds up what the ranks did since the last call, and judges the data. `encoded_here`: samples encoded so far;
  // `ended`: all is read; `filters`: what this rank's filters dropped, for an error. Collective.
  void reduce(const LedgerDelta& delta, std::int64_t encoded_here, bool ended = false, const std::string& filters = {});
  void print();  // on rank 0
  std::string describe() const;
  void write_ledger() const;

 private:
  void judge(bool ended, const std::vector<std::string>& filter_reports) const;
  void remove_done() const;

  const Group& group_;
  const DataPlan& data_;
  const double max_bad_share_;
  const std::filesystem::path run_dir_;
  const RunLease& lease_;
  Ledger ledger_;
  const Stopwatch since_start_{};
  Stopwatch since_line_;
  std::int64_t encoded_ = 0;
  std::int64_t lines_ = 0;
};

}  // namespace millrace
