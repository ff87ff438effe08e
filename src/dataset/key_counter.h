#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>

#include "millrace/core/hash.h"

namespace millrace {

// Counts the samples of each key, so that the second one of a key can be told apart.
class KeyCounter {
 public:
  // 1 for a key's first sample, 2 for its second...
  int add(const std::string& key) { return ++samples_[hash64(key)]; }

 private:
  std::unordered_map<std::uint64_t, int> samples_;  // by hash of the key
};

}  // namespace millrace
