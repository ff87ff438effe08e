#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "millrace/io/input_file.h"
#include "millrace/io/net/stream.h"

namespace millrace {

// A file from front to back, or what stands in its place: a pipe, a device. StorageError where it was made shorter
// while it was read.
class FileStream final : public ByteStream {
 public:
  explicit FileStream(const std::string& path) : file_(path) {}

  std::size_t read(std::span<std::byte> buffer) override;
  // Passes over `bytes` without reading them; returns how many those were: none where all has to be read.
  std::uint64_t skip(std::uint64_t bytes);
  // What read() has not come to yet, or is behind already.
  std::size_t read_at(std::uint64_t offset, std::span<std::byte> out) const { return file_.read_at(offset, out); }
  // Of a file, when it was opened; anything else has no end that is known in advance.
  std::optional<std::uint64_t> size() const;

 private:
  const InputFile file_;
  std::uint64_t position_ = 0;
};

}  // namespace millrace
