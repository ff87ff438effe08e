#include "millrace/loader/sources.h"

#include "millrace/core/error.h"
#include "millrace/latents/cache_manifest.h"
#include "millrace/latents/cached_source.h"
#include "millrace/latents/latent_table.h"

namespace millrace {

Manifest make_manifest(const SourceConfig& source, bool allow_pipes) {
  if (source.type != SourceConfig::Type::latents || source.path.empty() || is_latent_parquet(source))
    return list_archives(source, allow_pipes);
  if (source.path.size() != 1)
    throw Error(
        Exit::usage,
        fmt::format("{0}.type=latents reads one cache or Parquet files, {0}.path names several", source.section),
        "millrace preprocess can put the latents of many archives into one cache");
  return make_latent_manifest(source.path.front(), source.limit, source.section);
}

std::unique_ptr<SampleSource> make_source(const SourceConfig& config, const Manifest& manifest, int resolution,
                                          const std::string& index) {
  if (config.type == SourceConfig::Type::latents)
    return make_cached_source(config.path.front(), manifest, nullptr, CachedValues::full);
  return make_image_source(config, manifest, resolution, index);
}

}  // namespace millrace
