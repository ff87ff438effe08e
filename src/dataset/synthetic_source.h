#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "millrace/dataset/source.h"

namespace millrace {

inline constexpr std::int64_t synthetic_archive_rows = 1024;

// Made-up images and captions, for benchmarks: a few JPEGs of soft random colours, used again and again under new ids,
// so that reading costs next to nothing and decoding what it costs for photos of that size.
class SyntheticSource final : public SampleSource {
 public:
  SyntheticSource(const Manifest& manifest, int side);
  std::unique_ptr<SplitReader> open(const Split& split, std::uint64_t first_row) const override;

 private:
  const Manifest& manifest_;
  std::vector<std::string> jpegs_;
};

}  // namespace millrace
