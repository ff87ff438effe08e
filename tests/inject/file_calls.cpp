// libc's calls on files, as the program and the libraries that it links find them: an executable's symbols come first.
// What libc calls inside itself does not come by here; NOTE [Streams] has what is done about that.
#undef _FORTIFY_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "faults.h"
#include "losses.h"

namespace {

using namespace millrace::inject;

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

mode_t mode_in(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

Call call_of_open(int flags) {
  return (flags & (O_CREAT | O_TRUNC)) ? Call::create : Call::open;
}

// A path below a folder's descriptor, whole.
std::string path_at(int folder, const char* path) {
  if (folder == AT_FDCWD || path[0] == '/') return path;
  const std::string above = path_of(folder);
  return above.empty() ? above : above + "/" + path;
}

// `real` is called unless the fault says otherwise.
template <class Real>
int guarded(Call call, const std::string& path, Real real) {
  if (!is_armed() || !is_of_disk(path)) return real();
  const Verdict verdict = at(call, path);
  if (verdict.error == 0) return real();
  errno = verdict.error;
  return -1;
}

template <class Real>
int open_guarded(int folder, const char* path, int flags, Real real) {
  if (!is_armed()) return real();
  return guarded(call_of_open(flags), path_at(folder, path), real);
}

// `real` transfers so many bytes.
template <class Real>
ssize_t transfer(Call call, int fd, std::size_t bytes, Real real) {
  if (!is_armed()) return real(bytes);
  const std::string path = path_of(fd);
  if (path.empty()) return real(bytes);
  const std::size_t half = bytes < 2 ? bytes : bytes / 2;
  if (call == Call::write) note_writing(fd, path);
  const Verdict verdict = at(call, path, [&] {
    if (call == Call::write) real(half);
  });
  if (verdict.error) {
    errno = verdict.error;
    return -1;
  }
  return real(verdict.shorten ? half : bytes);
}

template <class Real>
int sync_guarded(int fd, Real real) {
  if (!is_armed()) return real();
  const std::string path = path_of(fd);
  if (path.empty()) return real();
  const Verdict verdict = at(Call::fsync, path);
  if (verdict.skip) return 0;
  if (verdict.error) {
    errno = verdict.error;
    return -1;
  }
  const int result = real();
  if (result == 0) note_synced(path);
  return result;
}

template <class Real>
int rename_guarded(const std::string& from, const std::string& to, Real real) {
  if (!is_armed()) return real();
  return guarded(Call::rename, to, [&] {
    note_renaming(from, to);
    const int result = real();
    if (result == 0) note_renamed(from, to);
    return result;
  });
}

template <class Real>
int remove_guarded(const std::string& path, Real real) {
  return guarded(Call::unlink, path, [&] {
    note_removing(path);
    return real();
  });
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  static const auto real = next<int (*)(const char*, int, ...)>("open");
  return open_guarded(AT_FDCWD, path, flags, [&] { return real(path, flags, mode); });
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return open(path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  static const auto real = next<int (*)(int, const char*, int, ...)>("openat");
  return open_guarded(folder, path, flags, [&] { return real(folder, path, flags, mode); });
}

int openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  return openat(folder, path, flags, mode);
}

int __open_2(const char* path, int flags) {
  return open(path, flags);
}
int __open64_2(const char* path, int flags) {
  return open(path, flags);
}

ssize_t read(int fd, void* out, size_t bytes) {
  static const auto real = next<ssize_t (*)(int, void*, size_t)>("read");
  return transfer(Call::read, fd, bytes, [&](size_t n) { return real(fd, out, n); });
}

ssize_t pread(int fd, void* out, size_t bytes, off_t from) {
  static const auto real = next<ssize_t (*)(int, void*, size_t, off_t)>("pread");
  return transfer(Call::read, fd, bytes, [&](size_t n) { return real(fd, out, n, from); });
}

ssize_t pread64(int fd, void* out, size_t bytes, off64_t from) {
  return pread(fd, out, bytes, from);
}

ssize_t __read_chk(int fd, void* out, size_t bytes, size_t) {
  return read(fd, out, bytes);
}
ssize_t __pread_chk(int fd, void* out, size_t bytes, off_t from, size_t) {
  return pread(fd, out, bytes, from);
}
ssize_t __pread64_chk(int fd, void* out, size_t bytes, off64_t from, size_t) {
  return pread(fd, out, bytes, from);
}

ssize_t write(int fd, const void* data, size_t bytes) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  return transfer(Call::write, fd, bytes, [&](size_t n) { return real(fd, data, n); });
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t to) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return transfer(Call::write, fd, bytes, [&](size_t n) { return real(fd, data, n, to); });
}

ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t to) {
  return pwrite(fd, data, bytes, to);
}

// Shortened it writes its first part only.
ssize_t writev(int fd, const iovec* parts, int count) {
  static const auto real = next<ssize_t (*)(int, const iovec*, int)>("writev");
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  return transfer(Call::write, fd, bytes,
                  [&](size_t n) { return real(fd, parts, n < bytes && count > 1 ? 1 : count); });
}

int fsync(int fd) {
  static const auto real = next<int (*)(int)>("fsync");
  return sync_guarded(fd, [&] { return real(fd); });
}

int fdatasync(int fd) {
  static const auto real = next<int (*)(int)>("fdatasync");
  return sync_guarded(fd, [&] { return real(fd); });
}

// Whatever it says, the descriptor is gone.
int close(int fd) {
  static const auto real = next<int (*)(int)>("close");
  if (!is_armed()) return real(fd);
  const std::string path = path_of(fd);
  const Verdict verdict = path.empty() ? Verdict{} : at(Call::close, path);
  const int result = real(fd);
  if (verdict.error == 0) return result;
  errno = verdict.error;
  return -1;
}

int rename(const char* from, const char* to) {
  static const auto real = next<int (*)(const char*, const char*)>("rename");
  return rename_guarded(from, to, [&] { return real(from, to); });
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  static const auto real = next<int (*)(int, const char*, int, const char*)>("renameat");
  return rename_guarded(path_at(from_folder, from), path_at(to_folder, to),
                        [&] { return real(from_folder, from, to_folder, to); });
}

// Where a rename would replace what is there.
int link(const char* from, const char* to) {
  static const auto real = next<int (*)(const char*, const char*)>("link");
  return guarded(Call::rename, to, [&] { return real(from, to); });
}

int unlink(const char* path) {
  static const auto real = next<int (*)(const char*)>("unlink");
  return remove_guarded(path, [&] { return real(path); });
}

int unlinkat(int folder, const char* path, int flags) {
  static const auto real = next<int (*)(int, const char*, int)>("unlinkat");
  return remove_guarded(is_armed() ? path_at(folder, path) : "", [&] { return real(folder, path, flags); });
}

int remove(const char* path) {
  static const auto real = next<int (*)(const char*)>("remove");
  return remove_guarded(path, [&] { return real(path); });
}

int mkdir(const char* path, mode_t mode) {
  static const auto real = next<int (*)(const char*, mode_t)>("mkdir");
  return guarded(Call::mkdir, path, [&] { return real(path, mode); });
}

dirent* readdir(DIR* folder) {
  static const auto real = next<dirent* (*)(DIR*)>("readdir");
  if (!is_armed()) return real(folder);
  const int before = errno;  // by which alone an error differs from the end
  const std::string path = path_of(::dirfd(folder));
  const Verdict verdict = path.empty() ? Verdict{} : at(Call::list, path);
  errno = verdict.error ? verdict.error : before;
  return verdict.error ? nullptr : real(folder);
}

int ftruncate(int fd, off_t bytes) {
  static const auto real = next<int (*)(int, off_t)>("ftruncate");
  return is_armed() ? guarded(Call::truncate, path_of(fd), [&] { return real(fd, bytes); }) : real(fd, bytes);
}

int ftruncate64(int fd, off64_t bytes) {
  return ftruncate(fd, bytes);
}

// NOTE [Streams] A FILE writes by calls inside libc. Those of our own code, which the linker sends to __wrap_fopen, get
// streams that write by the functions above. Those of libstdc++ (std::ofstream, and so the logs) use a FILE to open and
// close only and write its descriptor; std::ifstream reads it. What other libraries do with a FILE is not seen.
FILE* fopen64(const char* path, const char* mode) {
  static const auto real = next<FILE* (*)(const char*, const char*)>("fopen64");
  if (is_armed() && is_of_disk(path)) {
    const Verdict verdict = at(mode[0] == 'r' ? Call::open : Call::create, path);
    if (verdict.error) {
      errno = verdict.error;
      return nullptr;
    }
  }
  return real(path, mode);
}

static int descriptor_in(void* cookie) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(cookie));
}

FILE* __real_fopen(const char* path, const char* mode);

FILE* __wrap_fopen(const char* path, const char* mode) {
  if (!is_armed() || mode[0] == 'r') return __real_fopen(path, mode);
  const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (mode[0] == 'a' ? O_APPEND : O_TRUNC), 0666);
  if (fd < 0) return nullptr;
  const cookie_io_functions_t functions = {nullptr,
                                           [](void* cookie, const char* data, size_t bytes) -> ssize_t {
                                             size_t done = 0;  // in as many calls as it takes, as libc does
                                             for (ssize_t now = 1; done < bytes && now > 0;
                                                  done += static_cast<size_t>(std::max<ssize_t>(now, 0)))
                                               now = write(descriptor_in(cookie), data + done, bytes - done);
                                             return static_cast<ssize_t>(done);
                                           },
                                           [](void* cookie, off64_t* place, int whence) -> int {
                                             *place = lseek64(descriptor_in(cookie), *place, whence);
                                             return *place < 0 ? -1 : 0;
                                           },
                                           [](void* cookie) -> int { return close(descriptor_in(cookie)); }};
  FILE* const file = fopencookie(reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)), mode, functions);
  if (file) std::setvbuf(file, nullptr, _IOFBF, 4096);
  return file;
}
}
