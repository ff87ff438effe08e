#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace millrace {

// Counts the samples of each key, so that the second one of a key can be told apart.
class KeyCounter {
 public:
  // 1 for a key's first sample, 2 for its second...
  int add(const std::string& key);

 private:
  std::unordered_map<std::uint64_t, int> samples_;  // by hash of the key
};

// Where the samples of a plain tar lie, from one pass over its headers: lanes and resumed readers go straight to
// theirs.
struct TarIndex {
  struct Extent {
    std::uint64_t begin = 0, end = 0;
  };
  std::vector<Extent> samples;
  bool plain = true;                      // else the file is compressed, or sparse, and extents are unknown
  std::map<std::uint64_t, int> repeated;  // position in `samples` -> 2 for a key's second sample, 3...
  std::optional<std::string> broken;      // why the archive could not be read to its end
};

TarIndex index_tar(const std::string& path);

}  // namespace millrace
