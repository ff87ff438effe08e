#pragma once
#include <chrono>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "millrace/core/queue.h"
#include "millrace/core/stopwatch.h"
#include "millrace/data/stream.h"
#include "millrace/data/turns.h"
#include "millrace/encode/cached_encoder.h"
#include "millrace/encode/parcel.h"

namespace millrace {

// One encoder batch as it leaves the encoders.
struct Encoded {
  EncodedBatch batch;
  std::vector<bool> finite;  // per sample
  ProducerReport spent;      // up to then, all but sending
  Stopwatch since;
};

// Takes samples from the stream and encodes them, in a thread of its own, so that parcels travel meanwhile: messages
// move only while the thread that talks to MPI looks after them. One batch is made ahead.
class EncodingThread {
 public:
  // All three must outlive it; nobody else takes from `stream` or uses `encoder` until then.
  EncodingThread(StripeStream& stream, CachedEncoder& encoder, const std::vector<std::uint32_t>& stripes,
                 int parcel_samples);
  ~EncodingThread();  // after the batch that is being made

  // The next batch; nothing when none is ready within `limit`. Throws what ended the thread.
  std::optional<Encoded> next(std::chrono::milliseconds limit);

 private:
  void work();
  std::vector<TransformedSample> take_samples();
  Encoded encode(std::vector<TransformedSample> samples);
  ProducerReport report() const;

  StripeStream& stream_;
  CachedEncoder& encoder_;
  TurnReader samples_;
  const Stopwatch since_start_;
  double encode_seconds_ = 0;
  std::exception_ptr failure_;  // set before the queue is closed
  BoundedQueue<Encoded> ready_{1};
  std::jthread thread_;
};

}  // namespace millrace
