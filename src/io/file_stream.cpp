#include "file_stream.h"

#include <unistd.h>

#include <cerrno>

#include "millrace/core/storage_error.h"

namespace millrace {

std::size_t FileStream::read(std::span<std::byte> buffer) {
  while (true) {
    const ssize_t got = ::read(file_.descriptor(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("cannot read", file_.path());
    if (got == 0 && !buffer.empty()) file_.check_end(position_);
    position_ += static_cast<std::uint64_t>(got);
    return static_cast<std::size_t>(got);
  }
}

std::uint64_t FileStream::skip(std::uint64_t bytes) {
  const off_t before = ::lseek(file_.descriptor(), 0, SEEK_CUR);
  const off_t after = before < 0 ? -1 : ::lseek(file_.descriptor(), static_cast<off_t>(bytes), SEEK_CUR);
  if (after < 0) return 0;
  position_ = static_cast<std::uint64_t>(after);
  return static_cast<std::uint64_t>(after - before);
}

std::optional<std::uint64_t> FileStream::size() const {
  return file_.size() > 0 ? std::optional(file_.size()) : std::nullopt;
}

}  // namespace millrace
