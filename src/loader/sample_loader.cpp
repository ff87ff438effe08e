#include "millrace/loader/sample_loader.h"

namespace millrace {

SampleLoader::SampleLoader(const DataConfig& data, const TransformConfig& transform, const DataPlan& plan,
                           const LoaderOptions& options)
    : retry_for_(data.retry_for.count),
      max_bad_share_(data.max_bad_share),
      section_(data.train.section),
      filter_(data.train.filters, data.train.section),
      order_(options.seed, plan.stripes),
      transforms_{options.seed, data.images, transform, options.tokenizer, filter_.empty() ? nullptr : &filter_} {
  const bool is_validation = data.train.section != SourceConfig().section;
  transforms_.one_caption = options.one_caption || is_validation;
  if (!is_validation) transforms_.enlarged_watch = &EnlargedWatch::of_training();
  if (!options.rejected.empty()) rejected_.emplace(options.rejected, options.rank, plan.manifest);
}

StripeStream SampleLoader::start(const SampleSource& source, const std::vector<std::uint32_t>& stripes,
                                 StreamOptions options, const StripeCursors& from) {
  options.rejected = rejected();
  options.retry_for = retry_for_;
  if (options.epochs == 0) options.max_bad_share = max_bad_share_;  // the ledger judges a pass that comes to an end
  options.section = section_;
  StripeStream stream(order_, source, transforms_, options);
  for (const auto stripe : stripes) {
    const auto found = from.find(stripe);
    stream.add(stripe, found == from.end() ? StripeCursor{} : found->second);
  }
  return stream;
}

StreamOptions make_stream_options(const DataConfig& data, int threads) {
  StreamOptions options;
  options.threads = data.threads.value_or(threads);
  options.block = static_cast<std::uint32_t>(data.shuffle_block);
  return options;
}

}  // namespace millrace
