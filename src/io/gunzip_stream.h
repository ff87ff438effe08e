#pragma once
#include <zlib.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>

#include "millrace/core/error.h"
#include "millrace/io/net/stream.h"

namespace millrace {

// Packed bytes that end too early, or that unpack to nothing.
class GzipError : public Error {
 public:
  explicit GzipError(const char* what) : Error(Exit::io, what) {}
};

// What gzip has packed, its members joined; bytes of any other kind as they are. Whatever goes wrong, in the packed
// bytes or in reaching them, is thrown behind all that unpacks before it. As with libarchive, checksums and lengths are
// not compared, and what follows the last member counts for nothing unless it is another one.
class GunzipStream final : public ByteStream {
 public:
  explicit GunzipStream(std::unique_ptr<ByteStream> source);
  ~GunzipStream() override;
  GunzipStream(const GunzipStream&) = delete;
  GunzipStream& operator=(const GunzipStream&) = delete;

  // Fills the whole of `buffer` where so much is unpacked. GzipError, or what `source` throws.
  std::size_t read(std::span<std::byte> buffer) override;
  // Throws what the next read() would have.
  void finish() override;

  // Whether something was read, and is packed.
  bool is_packed() const { return kind_ == Kind::packed; }
  // Whether what comes next are the source's own next bytes.
  bool is_passed_on() const { return kind_ == Kind::plain && inflate_.avail_in == 0; }
  // Bytes of the source that all this was in, so far.
  std::uint64_t used() const { return fetched_ - inflate_.avail_in; }

 private:
  enum class Kind { unknown, packed, plain };

  void begin();
  std::size_t pass_on(std::span<std::byte> buffer);
  void unpack();
  void begin_member();
  bool fetch();

  std::unique_ptr<ByteStream> source_;
  Kind kind_ = Kind::unknown;
  std::array<std::byte, 64 << 10> buffer_;
  z_stream inflate_{};  // next_in: what of buffer_ is still to be taken
  std::uint64_t fetched_ = 0;
  bool in_member_ = true, at_end_ = false;
  std::exception_ptr trouble_;
};

}  // namespace millrace
