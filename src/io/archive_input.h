#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "archive_handle.h"
#include "millrace/io/net/stream.h"

namespace millrace {

// What an archive of libarchive reads from: a file or a stream. libarchive may read ahead, has words of its own for an
// input that fails, or none when it needs no more of it, and exceptions must not pass through it: what failed is kept.
class ArchiveInput {
 public:
  explicit ArchiveInput(const std::string& path);  // Error(io) when it cannot be opened
  explicit ArchiveInput(std::unique_ptr<ByteStream> stream);
  ~ArchiveInput();
  ArchiveInput(const ArchiveInput&) = delete;
  ArchiveInput& operator=(const ArchiveInput&) = delete;

  // Begins to read `a` from here; this object has to outlive it. Returns libarchive's result.
  int open(archive* a);
  // Bytes of a regular file; anything else has no end that is known in advance.
  std::uint64_t size() const;

  // Throws the AccessError that has kept bytes away, whatever libarchive made of it.
  void check_storage() const;
  // Why the input failed, in its own words: a command may.
  const std::optional<std::string>& failure() const { return failure_; }
  // Whoever gave the bytes may know of trouble that they do not show: a command by its status.
  void finish();

 private:
  static la_ssize_t read(archive* a, void* self, const void** data);
  static la_int64_t skip(archive* a, void* self, la_int64_t request);
  std::size_t fill();

  std::string path_;
  int fd_ = -1;
  bool seekable_ = false;
  std::unique_ptr<ByteStream> stream_;
  std::array<std::byte, 64 << 10> buffer_;
  std::optional<std::string> failure_;
  std::exception_ptr access_failure_;
};

}  // namespace millrace
