#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/loader/ledger.h"
#include "millrace/train/metrics.h"
#include "millrace/train/trainer_context.h"

namespace millrace {

// What became of every row that producers read: each trainer hears it from its producers, rank 0 of the trainers keeps
// the ledger.
class DataAccount {
 public:
  // `state`: Ledger::state_json of the checkpoint that training resumes from, on rank 0; empty = from the beginning.
  // `cursors`: where the stripes stand.
  DataAccount(const TrainerContext& context, const std::string& state, const StripeCursors& cursors);

  // Adds the samples that this trainer used in a step, and what producers saw on the way to them.
  void add(const std::vector<SampleRef>& refs, const LedgerDelta& delta);
  // Sends what is new to rank 0. Collective.
  void collect();
  // collect(), and Error(bad_data) when too large a share of the data is bad (data.max_bad_share): check_bad_share,
  // over all rows whenever the last stripe has ended a pass. Collective.
  void merge();
  // Fills in the rows so far in a line of metrics. Rank 0.
  void tell_rows(Metrics& metrics) const;
  // The ledger for a checkpoint. Rank 0.
  std::string state() const { return ledger_->state_json(); }
  // Writes RUN/ledger.json, for people: what a resume needs is in the checkpoint, so a full disk is no reason to stop.
  // Rank 0.
  void write_report() const;

 private:
  // How often all of the data was used. Collective.
  std::int64_t passes() const;

  const TrainerContext& context_;
  std::map<std::uint32_t, std::uint32_t> epochs_;  // per stripe: epoch of the last sample used
  std::int64_t judged_passes_;
  std::optional<Ledger> ledger_;  // on rank 0: of 200,000 archives it takes 67 MB
  LedgerDelta delta_;
};

}  // namespace millrace
