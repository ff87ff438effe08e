#include "millrace/io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "millrace/core/storage_error.h"

namespace millrace {

InputFile::InputFile(std::string path) : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (fd_ < 0) fail_errno("cannot open", path_);
}

InputFile::~InputFile() {
  ::close(fd_);
}

std::uint64_t InputFile::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) fail_errno("cannot look at", path_);
  return static_cast<std::uint64_t>(status.st_size);
}

std::size_t InputFile::read_at(std::uint64_t offset, std::span<std::byte> out) const {
  std::size_t read = 0;
  while (read < out.size()) {
    const ssize_t got = ::pread(fd_, out.data() + read, out.size() - read, static_cast<off_t>(offset + read));
    if (got == 0) break;
    if (got > 0) {
      read += static_cast<std::size_t>(got);
    } else if (errno != EINTR) {
      fail_errno("cannot read", path_);
    }
  }
  return read;
}

}  // namespace millrace
