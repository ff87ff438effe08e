#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "millrace/encode/cached_encoder.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/interleaved_reader.h"
#include "millrace/loader/ledger.h"
#include "millrace/loader/rejected_list.h"
#include "millrace/loader/stripe_stream.h"
#include "millrace/produce/encode_pipeline.h"

namespace millrace {

// A producer whose encodings end in files: reads the rows of its stripe in order, and encodes and writes those that the
// cache lacks, one batch while the next is encoded. No sample is replaced, every row is kept. The files of an archive
// are published as soon as the stripe has gone on to the next.
class CacheFiller {
 public:
  // `stripes`: one, or none. `pipeline` and `data` must outlive it.
  CacheFiller(EncodePipeline& pipeline, const DataPlan& data, std::vector<std::uint32_t> stripes,
              const StreamOptions& options);

  bool done() const { return done_; }

  // Reads on until there is one batch of samples, all is read, or `seconds` have passed (the filters may drop
  // everything), starts to encode what there is, and writes the batch that was started before.
  void work(double seconds);
  // Publishes what is encoded, or being encoded, and not in a complete file yet.
  void publish();

  // Outcomes of rows since the last call.
  LedgerDelta take_delta() { return std::exchange(delta_, {}); }
  std::int64_t encoded() const { return encoder_.images(); }
  std::string filter_report() const { return stream_.filter_report(); }

 private:
  std::optional<TransformedSample> next_missing(std::set<std::uint32_t>& archives);
  void account();
  void collect();

  const DataPlan& data_;
  RejectedList& rejected_;
  StripeStream stream_;
  CachedEncoder encoder_;
  const std::vector<std::uint32_t> stripes_;
  InterleavedReader samples_;
  bool done_;
  std::optional<StartedEncoding> running_;
  std::vector<RejectedRow> rejections_;  // not passed on to the cache yet
  LedgerDelta delta_;
  std::uint64_t non_finite_ = 0;  // samples whose encoding was not finite
};

}  // namespace millrace
