#pragma once
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/io/net/stream.h"

// What gzip makes of bytes, and streams that give it in pieces.
namespace millrace::test {

inline std::string gzip(std::string_view bytes, int level = 6) {
  z_stream stream{};
  ensure(deflateInit2(&stream, level, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY) == Z_OK, "zlib begins");
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  ensure(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib packs");
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// All that the front of a member unpacks to.
inline std::string gunzip_front(std::string_view packed) {
  z_stream stream{};
  ensure(inflateInit2(&stream, 16 + MAX_WBITS) == Z_OK, "zlib begins");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  std::string all, block(100'000, '\0');
  do {
    stream.next_out = reinterpret_cast<Bytef*>(block.data());
    stream.avail_out = static_cast<uInt>(block.size());
    if (inflate(&stream, Z_SYNC_FLUSH) < 0) break;
    all.append(block, 0, block.size() - stream.avail_out);
  } while (stream.avail_out == 0);
  inflateEnd(&stream);
  return all;
}

// Bytes in pieces of a length, and something that happens at their end.
class Pieces final : public ByteStream {
 public:
  explicit Pieces(
      std::string bytes, std::size_t piece = std::string::npos, std::function<void()> at_end = [] {})
      : bytes_(std::move(bytes)), piece_(piece), at_end_(std::move(at_end)) {}
  std::size_t read(std::span<std::byte> buffer) override {
    const auto size = std::min({buffer.size(), bytes_.size() - at_, piece_});
    if (size == 0) at_end_();
    std::memcpy(buffer.data(), bytes_.data() + at_, size);
    at_ += size;
    return size;
  }

 private:
  const std::string bytes_;
  const std::size_t piece_;
  const std::function<void()> at_end_;
  std::size_t at_ = 0;
};

}  // namespace millrace::test
