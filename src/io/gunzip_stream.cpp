#include "gunzip_stream.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

namespace millrace {

namespace {

constexpr std::size_t header_bytes = 10;  // without name and comment

}  // namespace

bool GunzipStream::is_gzip(std::span<const std::byte> begin) {
  constexpr std::byte unknown_flags{0xE0};
  return begin.size() >= magic_bytes && begin[0] == std::byte{0x1F} && begin[1] == std::byte{0x8B} &&
         begin[2] == std::byte{8} && (begin[3] & unknown_flags) == std::byte{0};
}

GunzipStream::GunzipStream(std::unique_ptr<ByteStream> packed, std::span<const std::byte> begin)
    : packed_(std::move(packed)), fetched_(begin.size()) {
  ensure(begin.size() <= buffer_.size(), "no more was read than fits");
  std::copy(begin.begin(), begin.end(), buffer_.begin());
  inflate_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
  inflate_.avail_in = static_cast<uInt>(begin.size());
  if (inflateInit2(&inflate_, 16 + MAX_WBITS) != Z_OK) throw std::bad_alloc();
  inflateValidate(&inflate_, 0);  // checksums take nearly as long as all else where images hardly pack
}

GunzipStream::~GunzipStream() {
  inflateEnd(&inflate_);
}

std::size_t GunzipStream::read(std::span<std::byte> buffer) {
  buffer = buffer.first(std::min<std::size_t>(buffer.size(), std::numeric_limits<uInt>::max()));
  inflate_.next_out = reinterpret_cast<Bytef*>(buffer.data());
  inflate_.avail_out = static_cast<uInt>(buffer.size());
  try {
    while (inflate_.avail_out > 0 && !at_end_ && !trouble_) unpack();
  } catch (...) {
    trouble_ = std::current_exception();
  }
  const std::size_t got = buffer.size() - inflate_.avail_out;
  if (got == 0 && trouble_) std::rethrow_exception(trouble_);
  return got;
}

void GunzipStream::finish() {
  if (trouble_) std::rethrow_exception(trouble_);
  packed_->finish();
}

void GunzipStream::unpack() {
  if (!in_member_) return begin_member();
  const int result = inflate(&inflate_, Z_NO_FLUSH);  // it may hold bytes that did not fit
  if (result == Z_BUF_ERROR) {
    if (!fetch()) throw GzipError("truncated gzip input");
    return;
  }
  if (result == Z_MEM_ERROR) throw std::bad_alloc();
  if (result != Z_OK && result != Z_STREAM_END) throw GzipError("gzip decompression failed");
  in_member_ = result == Z_OK;
}

void GunzipStream::begin_member() {
  while (inflate_.avail_in < header_bytes && fetch()) {
  }
  in_member_ =
      inflate_.avail_in >= header_bytes && is_gzip(std::as_bytes(std::span(inflate_.next_in, inflate_.avail_in)));
  at_end_ = !in_member_;
  if (in_member_) inflateReset(&inflate_);
}

// False at the end of what is packed.
bool GunzipStream::fetch() {
  std::memmove(buffer_.data(), inflate_.next_in, inflate_.avail_in);
  inflate_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
  const std::size_t got = packed_->read(std::span(buffer_).subspan(inflate_.avail_in));
  inflate_.avail_in += static_cast<uInt>(got);
  fetched_ += got;
  return got > 0;
}

}  // namespace millrace
