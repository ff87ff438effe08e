#include "millrace/data/source.h"

#include "millrace/core/error.h"
#include "millrace/data/latent_cache.h"
#include "synthetic_source.h"
#include "webdataset_source.h"

namespace millrace {

namespace {

[[noreturn]] void not_available(const char* type) {
  throw Error(Exit::usage, fmt::format("data.train.type={} is not available yet", type), "use webdataset or synthetic");
}

}  // namespace

std::unique_ptr<SampleSource> make_source(const SourceConfig& config, const Manifest& manifest, int resolution) {
  switch (config.type) {
    case SourceConfig::Type::webdataset:
      return std::make_unique<WebDatasetSource>(manifest, !config.filters.empty());
    case SourceConfig::Type::synthetic:
      return std::make_unique<SyntheticSource>(manifest, resolution);
    case SourceConfig::Type::parquet:
      not_available("parquet");
    case SourceConfig::Type::csv:
      not_available("csv");
    case SourceConfig::Type::class_labels:
      not_available("class");
    case SourceConfig::Type::latents:
      return make_cached_source(config.path.front(), manifest, nullptr, CachedValues::load);
  }
  fail(Exit::bug, "unknown type of data source");
}

}  // namespace millrace
