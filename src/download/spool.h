#pragma once
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "millrace/core/files.h"

namespace millrace {

// Bytes set aside on disk, since an archive is written in the order of its rows and images arrive in any. The file has
// no name: it is gone with the process. Any thread may call.
class Spool {
 public:
  explicit Spool(const fs::path& directory);
  ~Spool();
  Spool(const Spool&) = delete;
  Spool& operator=(const Spool&) = delete;

  // Where the bytes lie.
  struct Place {
    std::uint64_t offset = 0, bytes = 0;
  };
  Place append(std::string_view bytes);
  std::string read(Place place) const;

 private:
  fs::path directory_;
  int fd_ = -1;
  std::mutex mutex_;
  std::uint64_t end_ = 0;
};

}  // namespace millrace
