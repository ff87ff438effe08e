#include "millrace/io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "millrace/core/files.h"
#include "millrace/core/storage_error.h"

namespace millrace {

// 0 for what has none.
static std::uint64_t size_of(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_errno("cannot look at", path);
  return S_ISREG(status.st_mode) ? static_cast<std::uint64_t>(status.st_size) : 0;
}

InputFile::InputFile(std::string path) : path_(std::move(path)), fd_(open_file(path_, O_RDONLY)) {
  if (fd_ < 0) fail_errno("cannot open", path_);
  try {
    bytes_ = size_of(fd_, path_);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

InputFile::~InputFile() {
  ::close(fd_);
}

std::size_t InputFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  std::size_t read = 0;
  while (read < out.size()) {
    const ssize_t got = ::pread(fd_, out.data() + read, out.size() - read, static_cast<off_t>(offset + read));
    if (got == 0) {
      check_end(offset + read);
      break;
    }
    if (got > 0) {
      read += static_cast<std::size_t>(got);
    } else if (errno != EINTR) {
      fail_errno("cannot read", path_);
    }
  }
  return read;
}

// The size at opening does not say it alone: it is no count of bytes in /sys and on some FUSE mounts.
void InputFile::check_end(std::uint64_t offset) const {
  if (offset < bytes_ && size_of(fd_, path_) < bytes_) fail_shortened(path_);
}

}  // namespace millrace
