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
  StorageRetry::Seconds retry_for{0};  // for how long reads that fail because of storage are tried again
  RejectedList* rejected = nullptr;    // gets the bad rows; null = no list
  double max_bad_share = 1;            // data.max_bad_share, for the rows before the first sample; 1 = all may be bad
  std::string section = "data.train";  // of the data set, for messages
};

// Since the start.
struct StreamStatistics {
  int threads = 0;
  double seconds = 0;       // of each thread
  TransformSeconds busy;    // sum over the threads; for the rest of threads x seconds they were idle
  double wait_seconds = 0;  // that next() had to wait for the threads
  std::uint64_t rows = 0, accepted = 0;
};

// Reads and transforms the stripes of one producer in a pool of threads, as far as samples are expected. Memory is
// bounded by a block of rows per stripe, as they are in the archive, and the expected samples. What next() returns does
// not depend on the threads. One thread consumes.
class StripeStream {
 public:
  // `order`, `source` and what `transforms` points to must outlive the stream.
  StripeStream(const EpochOrder& order, const SampleSource& source, const TransformPipeline& transforms,
               const StreamOptions& options);
  StripeStream(StripeStream&&) noexcept;
  ~StripeStream();  // stops and joins the threads

  // Begins to read a stripe at `from`.
  void add(std::uint32_t stripe, const StripeCursor& from);

  // Announces one more call of next() for this stripe, so that its sample is read and transformed ahead.
  void expect(std::uint32_t stripe);

  // The stripe's next sample; waits for it. Nothing only after the last of `epochs`. Throws what stopped a worker
  // (ReadingStopped when that was a request to stop), and Error(bad_data) when a stripe, or all of them together, find
  // nothing to accept.
  std::optional<TransformedSample> next(std::uint32_t stripe);

  // Waits until next() would return or throw at once; false if `seconds` pass or a signal asks to stop before that. For
  // callers that have other work while filters drop everything or storage is slow.
  bool wait(std::uint32_t stripe, double seconds);

  // Ends the waiting for storage that does not answer: next() throws ReadingStopped instead. Safe to call from another
  // thread.
  void end_retries();

  // Outcomes of the stripe's rows since the last call, up to `max_bytes` of them; call until it is empty to have all
  // rows up to the samples that next() has returned.
  LedgerDelta take_ledger_delta(std::uint32_t stripe, std::size_t max_bytes = SIZE_MAX);

  // How many rows each filter drops, if no row was kept so far; else empty.
  std::string filter_report() const;

  StreamStatistics statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
