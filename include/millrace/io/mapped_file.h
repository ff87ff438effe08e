#pragma once
#include <cstddef>
#include <span>

#include "millrace/core/files.h"

namespace millrace {

// A whole file as read-only memory; Error(io) naming the path when it cannot be opened or mapped.
class MappedFile {
 public:
  explicit MappedFile(const fs::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace millrace
