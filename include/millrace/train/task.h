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

// Samples that are late.
struct Overdue {
  std::string what;  // "samples of stripe 3 from the producer on rank 5"
  int producer = 0;  // its index among the producers
};

// What is trained, as the loop sees it: data in, losses out. One object per trainer; every call comes in step order.
class Task {
 public:
  virtual ~Task() = default;

  // Waits at most `seconds` for this trainer's local batch of the next step: the next samples of each of its stripes,
  // stripes in order. False when it is not there yet: call again, nothing is lost.
  virtual bool next_batch(double seconds) = 0;
  // What was missing in the last next_batch(), if nothing of it has arrived for `seconds`.
  virtual std::optional<Overdue> overdue([[maybe_unused]] double seconds) const { return std::nullopt; }
  // The samples of the present local batch, in its order.
  virtual const std::vector<SampleRef>& refs() const = 0;
  // The inputs of the loss of samples [begin, end) of the local batch, apart from weights: tensors on the device.
  virtual std::vector<torch::Tensor> inputs(std::int64_t begin, std::int64_t end) = 0;
  // Sum of these samples' losses divided by the global batch: over all micro-batches of all trainers they add up to the
  // mean. A scalar with its autograd graph.
  virtual torch::Tensor loss(const std::vector<torch::Tensor>& inputs) = 0;
  // The last loss counts; it is not that of a micro-batch repeated because other trainers have more of them.
  virtual void count_loss_parts() {}
  // Sums of the terms of the losses that counted since the last call; added up over all trainers, means over the global
  // batch. The same names on every trainer; empty if the loss has no terms.
  virtual LossParts take_loss_parts() { return {}; }
  // Called again and again while the host waits for the device to compute the last loss: sends the device the next
  // inputs and receives the batch of the next step.
  virtual void look_ahead() {}
  // What became of rows since the last call.
  virtual LedgerDelta take_ledger_delta() = 0;

  // From now on inputs() and loss() keep their tensors until take_record().
  void start_record() { record_.start(); }
  // Tensors of this step by their names in the record file: first dimension the local batch, host memory, fp32 or i64.
  std::map<std::string, torch::Tensor> take_record() { return record_.take(); }

  // For trainers with producers:
  // Tells producers that no more samples are wanted; does not wait until they have stopped.
  virtual void stop_producers() {}
  // The newest report of each of this trainer's producers, by its index among the producers.
  virtual std::map<int, ProducerReport> producer_reports() { return {}; }
  // Fraction of the parcel slots that are full, 0..1.
  virtual double queue_fill() { return 0; }
  // The signal that a producer of this trainer received; 0 = none.
  virtual int producer_signal() { return 0; }

 protected:
  RecordPieces record_;
};

}  // namespace millrace
