#include "gunzip_stream.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

namespace millrace {

namespace {

constexpr std::size_t magic_bytes = 4;
constexpr std::size_t header_bytes = 10;  // without name and comment

bool is_gzip(std::span<const std::byte> begin) {
  constexpr std::byte unknown_flags{0xE0};
  return begin.size() >= magic_bytes && begin[0] == std::byte{0x1F} && begin[1] == std::byte{0x8B} &&
         begin[2] == std::byte{8} && (begin[3] & unknown_flags) == std::byte{0};
}

std::span<const std::byte> bytes_before(const z_stream& inflate) {
  return std::as_bytes(std::span(inflate.next_in, inflate.avail_in));
}

}  // namespace

GunzipStream::GunzipStream(std::unique_ptr<ByteStream> source) : source_(std::move(source)) {
  inflate_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
}

GunzipStream::~GunzipStream() {
  if (is_packed()) inflateEnd(&inflate_);
}

std::size_t GunzipStream::read(std::span<std::byte> buffer) {
  if (trouble_) std::rethrow_exception(trouble_);
  buffer = buffer.first(std::min<std::size_t>(buffer.size(), std::numeric_limits<uInt>::max()));
  inflate_.next_out = reinterpret_cast<Bytef*>(buffer.data());
  inflate_.avail_out = static_cast<uInt>(buffer.size());
  try {
    if (kind_ == Kind::unknown) begin();
    if (kind_ == Kind::plain) return pass_on(buffer);
    while (inflate_.avail_out > 0 && !at_end_) unpack();
  } catch (...) {
    trouble_ = std::current_exception();
    if (inflate_.avail_out == buffer.size()) throw;
  }
  return buffer.size() - inflate_.avail_out;
}

void GunzipStream::finish() {
  if (trouble_) std::rethrow_exception(trouble_);
  source_->finish();
}

void GunzipStream::begin() {
  while (inflate_.avail_in < magic_bytes && fetch()) {
  }
  if (!is_gzip(bytes_before(inflate_))) {
    kind_ = Kind::plain;
    return;
  }
  if (inflateInit2(&inflate_, 16 + MAX_WBITS) != Z_OK) throw std::bad_alloc();
  kind_ = Kind::packed;
  inflateValidate(&inflate_, 0);  // checksums take nearly as long as all else where images hardly pack
}

// What was looked at comes first.
std::size_t GunzipStream::pass_on(std::span<std::byte> buffer) {
  if (inflate_.avail_in == 0) return source_->read(buffer);
  const std::size_t size = std::min<std::size_t>(buffer.size(), inflate_.avail_in);
  std::memcpy(buffer.data(), inflate_.next_in, size);
  inflate_.next_in += size;
  inflate_.avail_in -= static_cast<uInt>(size);
  return size;
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
  in_member_ = inflate_.avail_in >= header_bytes && is_gzip(bytes_before(inflate_));
  at_end_ = !in_member_;
  if (in_member_) inflateReset(&inflate_);
}

// False at the end of the source.
bool GunzipStream::fetch() {
  std::memmove(buffer_.data(), inflate_.next_in, inflate_.avail_in);
  inflate_.next_in = reinterpret_cast<Bytef*>(buffer_.data());
  const std::size_t got = source_->read(std::span(buffer_).subspan(inflate_.avail_in));
  inflate_.avail_in += static_cast<uInt>(got);
  fetched_ += got;
  return got > 0;
}

}  // namespace millrace
