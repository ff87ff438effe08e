#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "millrace/dataset/data_config.h"
#include "millrace/dataset/filter.h"
#include "millrace/dataset/source.h"
#include "millrace/image/transform.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/rejected_list.h"
#include "millrace/loader/stripe_stream.h"

namespace millrace {

struct LoaderOptions {
  std::uint64_t seed = 0;                    // of order, crops and flips
  const ClipTokenizer* tokenizer = nullptr;  // must outlive the streams; null = no tokens
  bool one_caption = false;                  // of several captions, the same one in every epoch
  std::filesystem::path rejected = {};       // folder for the list of rejected rows; empty = no list
  int rank = 0;                              // names the file of that list
};

// Turns the archives of a data plan into streams of transformed samples: sets up filters, order, transforms and the
// list of rejected rows from the configuration. One object, since the parts refer to each other.
class SampleLoader {
 public:
  // `plan` must outlive the loader, and the loader its streams. Error(usage) for a filter that cannot be read.
  SampleLoader(const DataConfig& data, const TransformConfig& transform, const DataPlan& plan,
               const LoaderOptions& options);
  SampleLoader(const SampleLoader&) = delete;
  SampleLoader& operator=(const SampleLoader&) = delete;

  // Begins to read `stripes`, each from its cursor or from the start. `source` must outlive the stream.
  StripeStream start(const SampleSource& source, const std::vector<std::uint32_t>& stripes, StreamOptions options,
                     const StripeCursors& from = {});
  RejectedList* rejected() { return rejected_ ? &*rejected_ : nullptr; }

 private:
  const StorageRetry::Seconds retry_for_;
  const double max_bad_share_;
  const std::string section_;  // of the data set
  Filter filter_;
  EpochOrder order_;
  TransformPipeline transforms_;
  std::optional<RejectedList> rejected_;
};

// Stream options for training: data.threads threads, or `threads` if that is auto; blocks of data.shuffle_block rows.
StreamOptions make_stream_options(const DataConfig& data, int threads);

}  // namespace millrace
