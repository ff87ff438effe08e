#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "millrace/dataset/sample.h"
#include "millrace/dataset/source.h"
#include "millrace/dataset/storage_retry.h"
#include "millrace/loader/ledger_delta.h"
#include "millrace/loader/rejected_list.h"
#include "millrace/loader/stripe.h"
#include "millrace/loader/transform_sample.h"

namespace millrace {

struct StreamOptions {
  int threads = 1;                     // each reads and transforms
  std::uint32_t block = 1;             // rows of a stripe that are shuffled together
  std::uint32_t epochs = 0;            // passes over the data; 0 = without end
  StorageRetry::Seconds retry_for{0};  // reads that fail for reasons of storage are tried again
  RejectedList* rejected = nullptr;    // gets the bad rows; null = nobody wants them
  double max_bad_share = 1;            // data.max_bad_share, of the rows before the first sample; 1 = these may be bad
  std::string section = "data.train";  // of the data set, for messages
};

// Since the start.
struct StreamStatistics {
  int threads = 0;
  double seconds = 0;       // of each thread
  TransformSeconds busy;    // of all threads; what is left of threads x seconds they had nothing to do
  double wait_seconds = 0;  // next() had to wait: the threads are the slower side
  std::uint64_t rows = 0, accepted = 0;
};

// The stripes that one producer owns, read and transformed by a pool of threads as far as samples are expected: memory
// is bounded by a block of rows per stripe, as they are in the archive, and the expected samples. What next() returns
// does not depend on the threads. One thread consumes.
class StripeStream {
 public:
  // `order` and `source` must outlive the stream, as what `transforms` points to.
  StripeStream(const EpochOrder& order, const SampleSource& source, const TransformPipeline& transforms,
               const StreamOptions& options);
  StripeStream(StripeStream&&) noexcept;
  ~StripeStream();  // stops and joins the threads

  // Takes a stripe over from `from` on.
  void add(std::uint32_t stripe, const StripeCursor& from);

  // next() will be called for this stripe, once more than was said before: it is read and transformed as far as that.
  void expect(std::uint32_t stripe);

  // The stripe's next sample; waits for it. Nothing only after the last of `epochs`. Throws what stopped a worker
  // (ReadingStopped when that was a request to stop), and Error(bad_data) when a stripe, or all of them together, find
  // nothing to accept.
  std::optional<TransformedSample> next(std::uint32_t stripe);

  // Waits until next() has something to give at once, or to throw; false when `seconds` have passed or a signal asks to
  // stop before that. For who has more to do than to wait, where filters drop all or storage is slow.
  bool wait(std::uint32_t stripe, double seconds);

  // Nobody waits any longer for storage that stays away: next() throws ReadingStopped where it would. Safe to call from
  // another thread.
  void end_retries();

  // What became of the stripe's rows since the last call, as far as it fits: all rows up to the samples that next() has
  // returned, once repeated calls give an empty one.
  LedgerDelta take_ledger_delta(std::uint32_t stripe, std::size_t max_bytes = SIZE_MAX);

  // What the filters drop, where they have kept nothing so far; else empty.
  std::string filter_report() const;

  StreamStatistics statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
