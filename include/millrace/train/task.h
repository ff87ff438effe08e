#pragma once
#include <torch/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/dataset/sample.h"
#include "millrace/loader/ledger_delta.h"
#include "millrace/parcels/producer_report.h"
#include "millrace/train/loss_parts.h"
#include "millrace/train/record.h"

namespace millrace {

// Samples that do not come.
struct Overdue {
  std::string what;  // "samples of stripe 3 from the producer on rank 5"
  int producer = 0;  // its rank among the producers
};

// What is trained, as the loop sees it: data in, losses out. One object per trainer; every call comes in step order.
class Task {
 public:
  virtual ~Task() = default;

  // Waits at most `seconds` for this trainer's local batch of the next step: the next samples of each of its stripes,
  // stripes in order. False when it is not there yet: call again, nothing is lost.
  virtual bool next_batch(double seconds) = 0;
  // What the last call lacked, when nothing of it has arrived for `seconds`.
  virtual std::optional<Overdue> overdue([[maybe_unused]] double seconds) const { return std::nullopt; }
  // The samples of the present local batch, in its order.
  virtual const std::vector<SampleRef>& refs() const = 0;
  // What the loss of samples [begin, end) of the local batch depends on, besides weights: tensors on the device.
  virtual std::vector<torch::Tensor> inputs(std::int64_t begin, std::int64_t end) = 0;
  // Sum of these samples' losses over the size of the global batch: all parts of all trainers add up to the mean. A
  // scalar with its graph.
  virtual torch::Tensor loss(const std::vector<torch::Tensor>& inputs) = 0;
  // The last loss counts in the step, and is no repetition for the others' sake.
  virtual void count_loss_parts() {}
  // Parts of the losses that counted since the last call, of which those of all trainers add up to means over the
  // global batch; the same names on all. Empty where a loss has none.
  virtual LossParts take_loss_parts() { return {}; }
  // A device computes the loss of the last inputs: time to send it the next ones, and to receive those of the next
  // step. Called again and again while the host waits for the device.
  virtual void look_ahead() {}
  // What became of rows since the last call.
  virtual LedgerDelta take_ledger_delta() = 0;

  // From now on `loss` keeps its tensors until `take_record`.
  void start_record() { record_.start(); }
  // Tensors of this step by their names in the record file, first dimension = the local batch; host memory, fp32
  // or i64.
  std::map<std::string, torch::Tensor> take_record() { return record_.take(); }

  // Of a trainer with producers:
  // Nothing more is wanted; producers stop by themselves from here on.
  virtual void stop_producers() {}
  // The newest report of each of them, by its rank among the producers.
  virtual std::map<int, ProducerReport> producer_reports() { return {}; }
  // Parcels that wait / slots, 0..1.
  virtual double queue_fill() { return 0; }
  // A signal that reached one of them; 0 = none.
  virtual int producer_signal() { return 0; }

 protected:
  RecordPieces record_;
};

}  // namespace millrace
