#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "millrace/dataset/data_config.h"
#include "millrace/dataset/manifest.h"
#include "millrace/produce/encoding_plan.h"

namespace millrace {

// The disk space that a latent cache will take, as far as it is known before the first row.
struct CacheSize {
  std::uint64_t row_bytes = 0;               // of an encoding
  std::optional<std::uint64_t> token_bytes;  // the same with encode.text_on=trainer, unless that is set
  std::optional<std::uint64_t> rows;         // unknown if only reading the archives would tell
  std::optional<std::uint64_t> free_bytes;   // unknown if the disk does not say
};

// Asks the disk, but reads no archives.
CacheSize plan_cache_size(const EncodingPlan& plan, const SourceConfig& source, const Manifest& manifest);

// For the start-up table.
std::string describe(const CacheSize& size);

}  // namespace millrace
