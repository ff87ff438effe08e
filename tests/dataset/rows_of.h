#pragma once
#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "millrace/core/hash.h"
#include "millrace/dataset/source.h"
#include "millrace/loader/sources.h"

namespace millrace::test {

// "ID=CAPTION" of a sample, with all its captions, "ID:reason" of a rejected row.
inline std::string show(const RawRow& row) {
  if (const auto* rejected = std::get_if<Rejected>(&row)) return rejected->ref.id + ":" + to_string(rejected->reason);
  const auto& sample = std::get<RawSample>(row);
  EXPECT_EQ(sample.ref.hash, hash64(sample.ref.id));
  std::string captions = sample.caption;
  for (const auto& caption : sample.more_captions) captions += "|" + caption;
  return sample.ref.id + "=" + captions;
}

inline std::vector<std::string> rows_of(const SampleSource& source, const Split& split, std::uint64_t first_row = 0) {
  std::vector<std::string> rows;
  const auto reader = source.open(split, first_row);
  while (const auto row = reader->next()) rows.push_back(show(*row));
  return rows;
}

inline Manifest manifest_of(const SourceConfig& config) {
  return make_manifest(config, true);
}

// All rows of the first archive.
inline std::vector<std::string> rows_of(const SourceConfig& config) {
  const Manifest manifest = manifest_of(config);
  return rows_of(*make_source(config, manifest, 64), {0, 0, 1});
}

}  // namespace millrace::test
