#include "spool.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/process_name.h"
#include "millrace/core/storage_error.h"

namespace millrace {

Spool::Spool(const fs::path& directory) : directory_(directory) {
  std::string name;
  while (fd_ < 0) {
    name = temporary_name((directory / "spool").string());  // a later start removes it where a kill comes in between
    fd_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd_ < 0 && errno != EEXIST) fail_errno("cannot create a temporary file in", directory);
  }
  ::unlink(name.c_str());
}

Spool::~Spool() {
  ::close(fd_);
}

Spool::Place Spool::append(std::string_view bytes) {
  Place place{0, bytes.size()};
  {
    const std::lock_guard lock(mutex_);
    place.offset = std::exchange(end_, end_ + bytes.size());
  }
  for (std::uint64_t at = place.offset; !bytes.empty();) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (written == 0) errno = EIO;
    if (written == 0 || (written < 0 && errno != EINTR)) fail_errno("cannot write a temporary file in", directory_);
    if (written < 0) continue;
    at += static_cast<std::uint64_t>(written);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return place;
}

std::string Spool::read(Place place) const {
  std::string bytes(place.bytes, '\0');
  for (std::size_t got = 0; got < bytes.size();) {
    const ssize_t n = ::pread(fd_, bytes.data() + got, bytes.size() - got, static_cast<off_t>(place.offset + got));
    if (n < 0 && errno != EINTR) fail_errno("cannot read a temporary file in", directory_);
    ensure(n != 0, "what was set aside can be read");
    if (n > 0) got += static_cast<std::size_t>(n);
  }
  return bytes;
}

}  // namespace millrace
