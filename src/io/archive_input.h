#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "archive_handle.h"
#include "file_stream.h"
#include "gunzip_stream.h"
#include "millrace/io/net/stream.h"

namespace millrace {

// What an archive of libarchive reads from: a file or a stream. libarchive may read ahead, has words of its own for an
// input that fails, or none when it needs no more of it, and exceptions must not pass through it: what failed is kept.
// What is gzipped reaches it unpacked: its own filter, where that breaks, drops up to 64 KiB before the break.
class ArchiveInput {
 public:
  explicit ArchiveInput(const std::string& path);  // Error(io) when it cannot be opened
  explicit ArchiveInput(std::unique_ptr<ByteStream> stream);
  ArchiveInput(const ArchiveInput&) = delete;
  ArchiveInput& operator=(const ArchiveInput&) = delete;

  // Begins to read `a` from here; this object has to outlive it. Returns libarchive's result.
  int open(archive* a);
  // Of a file; anything else has no end that is known in advance.
  std::optional<std::uint64_t> size() const;
  // Bytes unpacked so far, as they were packed; nothing where none are unpacked here.
  std::optional<std::uint64_t> packed_bytes() const;
  // Any bytes of a file, as InputFile::read_at().
  std::size_t read_at(std::uint64_t offset, std::span<std::byte> out) const { return file_->read_at(offset, out); }

  // Throws what has failed for no fault of the bytes, whatever libarchive made of it: an AccessError, as a rule.
  void check_storage() const;
  // Why the input failed, in its own words: a command may.
  const std::optional<std::string>& failure() const { return failure_; }
  // What is wrong with bytes that were to be unpacked here.
  const std::optional<std::string>& damage() const { return damage_; }
  // Whoever gave the bytes may know of trouble that they do not show: a command by its status.
  void finish();

 private:
  explicit ArchiveInput(std::unique_ptr<FileStream> file);

  static la_ssize_t read(archive* a, void* self, const void** data);
  static la_int64_t skip(archive* a, void* self, la_int64_t request);
  template <class Call>
  void attempt(Call call);

  FileStream* const file_ = nullptr;  // the stream's source, where it is one
  GunzipStream stream_;
  std::array<std::byte, 64 << 10> buffer_;
  std::optional<std::string> failure_, damage_;
  std::exception_ptr not_of_bytes_;
};

}  // namespace millrace
