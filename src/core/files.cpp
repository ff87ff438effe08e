#include "millrace/core/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/process_name.h"
#include "millrace/core/storage_error.h"

namespace millrace {

namespace {

// A file descriptor that closes itself; for reading, where a failing close loses nothing.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags) : fd_(open_file(path, flags)) {
    if (fd_ < 0) fail_errno("cannot open", path);
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

fs::path parent_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

// Calls `use(data, bytes)` for the whole content, in pieces.
template <class Use>
void for_each_piece(const fs::path& path, Use use) {
  const Descriptor file(path, O_RDONLY);
  std::string buffer(1 << 20, '\0');
  while (true) {
    const ssize_t got = ::read(file.get(), buffer.data(), buffer.size());
    if (got == 0) return;
    if (got > 0) {
      use(buffer.data(), static_cast<std::size_t>(got));
    } else if (errno != EINTR) {
      fail_errno("cannot read", path);
    }
  }
}

}  // namespace

int open_file(const fs::path& path, int flags) {
  int fd = -1;
  do fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  while (fd < 0 && errno == EINTR);
  return fd;
}

// What lies there already, a link that somebody has planted too, is left alone, and another name taken.
AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  while (fd_ < 0) {
    temp_ = temporary_name(path_.string());
    fd_ = open_file(temp_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
    if (fd_ < 0 && errno != EEXIST) fail_errno("cannot create", path_);
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temp_.empty()) ::unlink(temp_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  ensure(fd_ >= 0, "write to a file that was committed");
  hasher_.update(data, bytes);
  bytes_ += bytes;
  std::string_view rest(static_cast<const char*>(data), bytes);
  if (!write_all(fd_, rest)) fail_errno("cannot write", path_);
}

void AtomicFile::close_durably() {
  ensure(fd_ >= 0, "a file is committed once");
  if (::fsync(fd_) != 0) fail_errno("cannot write", path_);
  // The descriptor is gone after close() whatever it returns; network file systems report late write errors here.
  if (::close(std::exchange(fd_, -1)) != 0) fail_errno("cannot write", path_);
}

AtomicFile::Written AtomicFile::commit() {
  close_durably();
  rename_durably(temp_, path_);
  temp_.clear();
  return {bytes_, hasher_.digest()};
}

// rename() would replace what is there; not every file system has hard links.
bool AtomicFile::commit_if_absent() {
  close_durably();
  if (::link(temp_.c_str(), path_.c_str()) == 0) {
    fsync_directory(parent_of(path_));
    return true;
  }
  if (errno == EEXIST) return false;
  std::error_code error;
  if (fs::exists(path_, error)) return false;
  rename_durably(temp_, path_);
  temp_.clear();
  return true;
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

bool write_file_if_absent(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  return file.commit_if_absent();
}

std::string read_file(const fs::path& path) {
  std::string content;
  for_each_piece(path, [&](const char* data, std::size_t bytes) { content.append(data, bytes); });
  return content;
}

int open_to_append(const fs::path& path) {
  const int fd = open_file(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW);
  if (fd >= 0) return fd;
  const int code = errno;
  if (std::error_code error; code == ELOOP && fs::is_symlink(path, error))
    throw AccessError(path.string(), errno_name(code),
                      fmt::format("{} is a symbolic link to {}, which is not written to", path.string(),
                                  fs::read_symlink(path, error).string()),
                      "remove the link; where files are to lie elsewhere, make the folder a link");
  errno = code;
  fail_errno("cannot open", path);
}

bool write_all(int fd, std::string_view& rest) {
  while (!rest.empty()) {
    const ssize_t written = ::write(fd, rest.data(), rest.size());
    if (written > 0) {
      rest.remove_prefix(static_cast<std::size_t>(written));
    } else if (written == 0 || errno != EINTR) {
      if (written == 0) errno = EIO;
      return false;
    }
  }
  return true;
}

// The iterator's own ++ throws, whatever it was made with.
std::vector<fs::directory_entry> list_folder(const fs::path& folder, std::error_code& error) {
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    entries.push_back(*entry);
  return entries;
}

void fsync_directory(const fs::path& path) {
  const Descriptor directory(path, O_RDONLY | O_DIRECTORY);
  // Some file systems cannot sync a directory and say EINVAL, EBADF or ENOTSUP; their renames are as durable as they
  // get.
  if (::fsync(directory.get()) != 0 && errno != EINVAL && errno != EBADF && errno != ENOTSUP)
    fail_errno("cannot sync directory", path);
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_errno("cannot rename to", to);
  fsync_directory(parent_of(to));
}

fs::path without_last_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

fs::path normal_path(const fs::path& path) {
  return without_last_slash(fs::absolute(path).lexically_normal());
}

fs::path resolved_path(const fs::path& path) {
  std::error_code error;
  auto resolved = fs::canonical(path, error);
  return error ? path : resolved;
}

fs::path existing_ancestor(const fs::path& path) {
  std::error_code error;
  auto folder = fs::absolute(path, error);
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  return folder;
}

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return;
  errno = error.value();
  fail_errno("cannot make", path);
}

fs::path make_temporary_directory(const fs::path& final_name) {
  make_directories(parent_of(final_name));
  for (;;) {
    fs::path path = temporary_name(final_name.string());
    if (::mkdir(path.c_str(), 0777) == 0) return path;
    if (errno != EEXIST) fail_errno("cannot make", path);
  }
}

AtomicFile::Written publish_file(const fs::path& temporary, const fs::path& final_name) {
  const Descriptor file(temporary, O_RDONLY);
  if (::fsync(file.get()) != 0) fail_errno("cannot write", temporary);
  struct stat is {};
  if (::fstat(file.get(), &is) != 0) fail_errno("cannot look at", temporary);
  const AtomicFile::Written written{static_cast<std::uint64_t>(is.st_size), hash_file(temporary)};
  rename_durably(temporary, final_name);
  return written;
}

void publish_directory(const fs::path& temporary, const fs::path& final_name) {
  fsync_directory(temporary);
  rename_durably(temporary, final_name);
}

void drop_cached_pages(const fs::path& path) {
  const Descriptor file(path, O_RDONLY);
  (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
}

Hash128 hash_file(const fs::path& path) {
  Hasher128 hasher;
  for_each_piece(path, [&](const char* data, std::size_t bytes) { hasher.update(data, bytes); });
  return hasher.digest();
}

}  // namespace millrace
