#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "archive_handle.h"
#include "gunzip_stream.h"
#include "millrace/io/net/stream.h"

namespace millrace {

// What an archive of libarchive reads from: a file or a stream. libarchive may read ahead, has words of its own for an
// input that fails, or none when it needs no more of it, and exceptions must not pass through it: what failed is kept.
class ArchiveInput {
 public:
  explicit ArchiveInput(const std::string& path);  // Error(io) when it cannot be opened
  explicit ArchiveInput(std::unique_ptr<ByteStream> stream);
  ArchiveInput(const ArchiveInput&) = delete;
  ArchiveInput& operator=(const ArchiveInput&) = delete;

  // To be called before open(): what is gzipped reaches libarchive unpacked, whose own filter, where that breaks, drops
  // up to 64 KiB before the break.
  void unpack_gzip() { unpack_gzip_ = true; }
  // Begins to read `a` from here; this object has to outlive it. Returns libarchive's result.
  int open(archive* a);
  // Bytes of a regular file; anything else has no end that is known in advance.
  std::uint64_t size() const;
  // Bytes unpacked so far, as they were packed; nothing where none are unpacked here.
  std::optional<std::uint64_t> packed_bytes() const;

  // Throws the AccessError that has kept bytes away, whatever libarchive made of it.
  void check_storage() const;
  // Why the input failed, in its own words: a command may.
  const std::optional<std::string>& failure() const { return failure_; }
  // What is wrong with bytes that were to be unpacked here.
  const std::optional<std::string>& damage() const { return damage_; }
  // Whoever gave the bytes may know of trouble that they do not show: a command by its status.
  void finish();

 private:
  static la_ssize_t read(archive* a, void* self, const void** data);
  static la_int64_t skip(archive* a, void* self, la_int64_t request);
  std::size_t fill();
  std::size_t fill_first();

  std::unique_ptr<ByteStream> stream_;
  int fd_ = -1;  // of a file, which the stream closes
  bool seekable_ = false, unpack_gzip_ = false, begun_ = false;
  const GunzipStream* gunzip_ = nullptr;  // the stream, where it is one
  std::array<std::byte, 64 << 10> buffer_;
  std::optional<std::string> failure_, damage_;
  std::exception_ptr access_failure_;
};

}  // namespace millrace
