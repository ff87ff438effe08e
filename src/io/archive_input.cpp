#include "archive_input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>

#include "millrace/core/files.h"
#include "millrace/core/storage_error.h"

namespace millrace {

namespace {

class FileStream final : public ByteStream {
 public:
  explicit FileStream(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) fail_errno("cannot open", path);
    struct stat status {};
    if (::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode)) bytes_ = status.st_size;
  }
  ~FileStream() override { ::close(fd_); }
  FileStream(const FileStream&) = delete;
  FileStream& operator=(const FileStream&) = delete;

  std::size_t read(std::span<std::byte> buffer) override {
    while (true) {
      const ssize_t got = ::read(fd_, buffer.data(), buffer.size());
      if (got == 0 && !buffer.empty()) expect_end();
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno != EINTR) fail_errno("cannot read", path_);
    }
  }
  int fd() const { return fd_; }

 private:
  void expect_end() const {
    if (::lseek(fd_, 0, SEEK_CUR) < bytes_) fail_shortened(path_);
  }

  const std::string path_;
  const int fd_;
  off_t bytes_ = 0;  // of a file, when it was opened
};

}  // namespace

ArchiveInput::ArchiveInput(const std::string& path) {
  auto file = std::make_unique<FileStream>(path);
  fd_ = file->fd();
  stream_ = std::move(file);
  seekable_ = size() != std::numeric_limits<std::uint64_t>::max();
}

ArchiveInput::ArchiveInput(std::unique_ptr<ByteStream> stream) : stream_(std::move(stream)) {}

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

std::optional<std::uint64_t> ArchiveInput::packed_bytes() const {
  return gunzip_ ? std::optional(gunzip_->used()) : std::nullopt;
}

void ArchiveInput::check_storage() const {
  if (access_failure_) std::rethrow_exception(access_failure_);
}

void ArchiveInput::finish() try {
  if (!failure_ && !damage_) stream_->finish();
} catch (const GzipError& error) {
  damage_ = error.what();
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
  } catch (const GzipError& error) {
    input.damage_ = error.what();
  } catch (const AccessError& error) {
    input.failure_ = error.what();
    input.access_failure_ = std::current_exception();
  } catch (const std::exception& error) {
    input.failure_ = error.what();
  }
  archive_set_error(a, EIO, "%s", (input.failure_ ? input.failure_ : input.damage_)->c_str());
  return -1;
}

la_int64_t ArchiveInput::skip(archive*, void* self, la_int64_t request) {
  const auto& input = *static_cast<ArchiveInput*>(self);
  if (input.gunzip_) return 0;
  const off_t before = ::lseek(input.fd_, 0, SEEK_CUR);
  const off_t after = before < 0 ? -1 : ::lseek(input.fd_, request, SEEK_CUR);
  return after < 0 ? 0 : after - before;  // what is not passed over is read
}

std::size_t ArchiveInput::fill() {
  return unpack_gzip_ && !std::exchange(begun_, true) ? fill_first() : stream_->read(buffer_);
}

std::size_t ArchiveInput::fill_first() {
  std::size_t got = 0;
  while (got < GunzipStream::magic_bytes) {
    const std::size_t more = stream_->read(std::span(buffer_).subspan(got));
    if (more == 0) break;
    got += more;
  }
  const auto begin = std::span(buffer_).first(got);
  if (!GunzipStream::is_gzip(begin)) return got;
  auto gunzip = std::make_unique<GunzipStream>(std::move(stream_), begin);
  gunzip_ = gunzip.get();
  stream_ = std::move(gunzip);
  return stream_->read(buffer_);
}

}  // namespace millrace
