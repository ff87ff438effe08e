#pragma once
#include <vector>

#include "millrace/core/stopwatch.h"
#include "millrace/parcels/producer_report.h"
#include "millrace/train/metrics.h"
#include "millrace/train/trainer_context.h"
#include "straggler.h"

namespace millrace {

// What producers report about their time, over all of them.
class ProducerAccount {
 public:
  explicit ProducerAccount(const TrainerContext& context) : context_(context), before_(context.producer_ranks.size()) {}

  // Fills in the producers' part of a line of metrics, and of `totals`, which covers all their time; warns of producers
  // that stay slow. `steps`: since the last line. Collective.
  void account(std::int64_t steps, Metrics& metrics, Metrics& totals);

 private:
  std::vector<ProducerReport> newest_reports() const;
  double queue_fill() const;
  bool has_own_gpus() const;

  const TrainerContext& context_;
  std::vector<ProducerReport> before_;  // at the last line up to which they told enough
  Stopwatch since_line_;
  StageShares stages_;
  GpuUse gpu_;
  double encode_rate_ = 0;
  StragglerWatch slow_;
};

}  // namespace millrace
