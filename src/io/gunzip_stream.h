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

// What gzip has packed, its members joined. Whatever goes wrong, in the packed bytes or in reaching them, is thrown
// behind all that unpacks before it. As with libarchive, checksums and lengths are not compared, and what follows the
// last member counts for nothing unless it is another one.
class GunzipStream final : public ByteStream {
 public:
  static constexpr std::size_t magic_bytes = 4;
  static bool is_gzip(std::span<const std::byte> begin);

  // `begin`: what was read of `packed` already.
  GunzipStream(std::unique_ptr<ByteStream> packed, std::span<const std::byte> begin);
  ~GunzipStream() override;
  GunzipStream(const GunzipStream&) = delete;
  GunzipStream& operator=(const GunzipStream&) = delete;

  // Fills the whole of `buffer` where there is so much. GzipError, or what `packed` throws.
  std::size_t read(std::span<std::byte> buffer) override;
  // Throws what the next read() would have.
  void finish() override;
  // Packed bytes that all this was in, so far.
  std::uint64_t used() const { return fetched_ - inflate_.avail_in; }

 private:
  void unpack();
  void begin_member();
  bool fetch();

  std::unique_ptr<ByteStream> packed_;
  std::array<std::byte, 64 << 10> buffer_;
  std::uint64_t fetched_ = 0;
  z_stream inflate_{};
  bool in_member_ = true, at_end_ = false;
  std::exception_ptr trouble_;
};

}  // namespace millrace
