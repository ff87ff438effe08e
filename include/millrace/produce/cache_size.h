#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "millrace/dataset/data_config.h"
#include "millrace/dataset/manifest.h"
#include "millrace/produce/encoding_plan.h"

namespace millrace {

// What a latent cache will take on its disk, as far as it is known before the first row.
struct CacheSize {
  std::uint64_t row_bytes = 0;               // of an encoding
  std::optional<std::uint64_t> token_bytes;  // of one with encode.text_on=trainer, where that would be another
  std::optional<std::uint64_t> rows;         // none where only reading the archives would tell
  std::optional<std::uint64_t> free_bytes;   // none where the disk does not say
};

// Looks at the disk, not at the archives.
CacheSize plan_cache_size(const EncodingPlan& plan, const SourceConfig& source, const Manifest& manifest);

// For the start-up table.
std::string describe(const CacheSize& size);

}  // namespace millrace
