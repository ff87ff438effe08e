#pragma once
#include <string>

#include "millrace/loader/ledger.h"
#include "millrace/train/loop.h"

namespace millrace {

// What became of every sample that producers have read: each trainer hears it from its producers, rank 0 of the
// trainers keeps the ledger.
class DataAccount {
 public:
  // `state`: Ledger::state_json of the checkpoint that is continued, on rank 0; empty = from the beginning.
  DataAccount(const TrainerContext& context, const std::string& state);

  // This trainer's news; `merge` takes them to rank 0.
  void add(const LedgerDelta& delta) { delta_.append(delta); }
  // Error when too large a share of the data is bad (data.max_bad_share). Collective.
  void merge();
  // For a checkpoint. Rank 0.
  std::string state() const { return ledger_.state_json(); }
  // RUN/ledger.json, for people: what a resume needs is in the checkpoint, so a full disk is no reason to stop. Rank 0.
  void write_report() const;

 private:
  const TrainerContext& context_;
  Ledger ledger_;
  LedgerDelta delta_;
};

}  // namespace millrace
