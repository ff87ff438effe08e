#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

// Where the samples of a plain tar lie, from one pass over its headers: splits and resumed readers go straight to
// theirs.
struct TarIndex {
  struct Extent {
    std::uint64_t begin = 0, end = 0;
    bool operator==(const Extent&) const = default;
  };
  std::vector<Extent> samples;
  bool plain = true;                      // else the file is compressed, and extents are unknown
  std::map<std::uint64_t, int> repeated;  // position in `samples` -> 2 for a key's second sample, 3...
  std::optional<std::string> broken;      // why the archive could not be read to its end
  bool operator==(const TarIndex&) const = default;
};

TarIndex index_tar(const std::string& path);

}  // namespace millrace
