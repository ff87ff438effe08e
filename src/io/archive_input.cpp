#include "archive_input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "millrace/core/files.h"
#include "millrace/core/storage_error.h"

namespace millrace {

ArchiveInput::ArchiveInput(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (fd_ < 0) fail_errno("cannot open", path);
  seekable_ = size() != std::numeric_limits<std::uint64_t>::max();
}

ArchiveInput::ArchiveInput(std::unique_ptr<ByteStream> stream) : stream_(std::move(stream)) {}

ArchiveInput::~ArchiveInput() {
  if (fd_ >= 0) ::close(fd_);
}

int ArchiveInput::open(archive* a) {
  archive_read_set_read_callback(a, &ArchiveInput::read);
  if (seekable_) archive_read_set_skip_callback(a, &ArchiveInput::skip);
  archive_read_set_callback_data(a, this);
  return archive_read_open1(a);
}

std::uint64_t ArchiveInput::size() const {
  struct stat status {};
  const bool regular = fd_ >= 0 && ::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode);
  return regular ? static_cast<std::uint64_t>(status.st_size) : std::numeric_limits<std::uint64_t>::max();
}

void ArchiveInput::check_storage() const {
  if (access_failure_) std::rethrow_exception(access_failure_);
}

void ArchiveInput::finish() try {
  if (stream_ && !failure_) stream_->finish();
} catch (const AccessError& error) {
  failure_ = error.what();
  access_failure_ = std::current_exception();
} catch (const Error& error) {
  failure_ = error.what();
}

la_ssize_t ArchiveInput::read(archive* a, void* self, const void** data) {
  auto& input = *static_cast<ArchiveInput*>(self);
  *data = input.buffer_.data();
  try {
    return static_cast<la_ssize_t>(input.fill());
  } catch (const AccessError& error) {
    input.failure_ = error.what();
    input.access_failure_ = std::current_exception();
  } catch (const std::exception& error) {
    input.failure_ = error.what();
  }
  archive_set_error(a, EIO, "%s", input.failure_->c_str());
  return -1;
}

la_int64_t ArchiveInput::skip(archive*, void* self, la_int64_t request) {
  const auto& input = *static_cast<ArchiveInput*>(self);
  const off_t before = ::lseek(input.fd_, 0, SEEK_CUR);
  const off_t after = before < 0 ? -1 : ::lseek(input.fd_, request, SEEK_CUR);
  return after < 0 ? 0 : after - before;  // what is not passed over is read
}

std::size_t ArchiveInput::fill() {
  if (stream_) return stream_->read(buffer_);
  while (true) {
    const ssize_t got = ::read(fd_, buffer_.data(), buffer_.size());
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) fail_errno("cannot read", path_);
  }
}

}  // namespace millrace
