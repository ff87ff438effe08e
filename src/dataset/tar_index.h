#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace millrace {

// What an index is only valid for.
struct FileStamp {
  std::uint64_t bytes = 0;
  std::int64_t changed_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

// Nothing where the file cannot be looked at.
std::optional<FileStamp> stamp_of(const std::string& path);

// Where the samples of a plain tar lie, from one pass over its headers: splits and resumed readers go straight to
// theirs.
struct TarIndex {
  struct Extent {
    std::uint64_t begin = 0, end = 0;
    bool operator==(const Extent&) const = default;
  };
  FileStamp stamp;  // of the archive, when this was begun
  std::vector<Extent> samples;
  bool plain = true;                      // else the file is compressed, and extents are unknown
  std::map<std::uint64_t, int> repeated;  // position in `samples` -> 2 for a key's second sample, 3...
  std::optional<std::string> broken;      // why the archive could not be read to its end
  bool operator==(const TarIndex&) const = default;
};

TarIndex index_tar(const std::string& path);

}  // namespace millrace
