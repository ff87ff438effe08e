#pragma once
#include <chrono>
#include <deque>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "millrace/core/queue.h"
#include "millrace/core/stopwatch.h"
#include "millrace/encode/cached_encoder.h"
#include "millrace/loader/interleaved_reader.h"
#include "millrace/loader/stripe_stream.h"
#include "millrace/nn/gpu_watch.h"
#include "millrace/parcels/parcel_bytes.h"

namespace millrace {

// One encoder batch as it leaves the encoders, rarely two. A sample whose encoding is not finite is replaced, behind
// them, by the next one of its stripe, so that no parcel lacks a sample that the order of parcels counts on.
struct EncoderOutput {
  EncodedBatch batch;                // finite
  std::vector<SampleRef> dropped{};  // not finite: left out of `batch`
  ProducerReport spent;              // up to then, without sending
  Stopwatch since;                   // `spent` was taken
};

// Takes samples from the stream and encodes them, in a thread of its own, so that parcels travel meanwhile: messages
// move only while the thread that talks to MPI looks after them. One batch is made ahead, and on a GPU one is being put
// together while another one is computed.
class EncodingThread {
 public:
  // All three must outlive it; nobody else takes from `stream` or uses `encoder` until then.
  EncodingThread(StripeStream& stream, CachedEncoder& encoder, const std::vector<std::uint32_t>& stripes,
                 TurnSize parcel);
  ~EncodingThread();  // waits for the batch that is being made

  // The next batch; nothing when none is ready within `limit`. Throws what ended the thread.
  std::optional<EncoderOutput> next(std::chrono::milliseconds limit);
  // After next() has thrown: samples whose encodings were not finite and that no output has told of.
  const std::vector<SampleRef>& untold() const { return collected_.dropped; }

 private:
  void work();
  std::vector<TransformedSample> take_samples();
  std::vector<TransformedSample> take_replacements();
  StartedEncoding start(std::vector<TransformedSample> samples);
  void collect();
  void replace_missing();
  bool hand_on();
  ProducerReport report();

  StripeStream& stream_;
  CachedEncoder& encoder_;
  InterleavedReader samples_;
  const std::int64_t images_before_;  // by an earlier round
  const Stopwatch since_start_{};
  double encode_seconds_ = 0;
  std::optional<StartedEncoding> running_;
  std::vector<EncodedBatch> pieces_;   // finite, not handed on yet
  EncoderOutput collected_;            // what else is to be said of them
  std::deque<std::uint32_t> missing_;  // stripes that lack a sample in them
  bool was_finite_ = false;            // something, so far
  GpuWatch gpu_;
  std::exception_ptr failure_;  // set before the queue is closed
  BoundedQueue<EncoderOutput> ready_{1};
  std::jthread thread_;
};

}  // namespace millrace
