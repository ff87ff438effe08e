#undef _FORTIFY_SOURCE
#include "tools/faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdlib>
#include <mutex>

namespace millrace::test {

namespace {

using Clock = std::chrono::steady_clock;

// What is injected at present. Never destroyed: files are read until the process is gone.
struct State {
  std::mutex mutex;
  Fault fault;
  bool active = false;
  Clock::time_point since{};
  std::int64_t calls = 0, failures = 0;
  std::array<std::atomic<bool>, 1 << 16> watched{};  // descriptors
};

std::string take_until(std::string& text, char end) {
  const auto at = text.find(end);
  const std::string taken = text.substr(0, at);
  text.erase(0, at == text.npos ? at : at + 1);
  return taken;
}

State* make_state() {
  auto* const state = new State;
  if (const char* const wish = std::getenv("MILLRACE_FAULT")) {
    std::string text = wish;
    state->fault.code = std::atoi(take_until(text, ':').c_str());
    state->fault.after = std::atoll(take_until(text, ':').c_str());
    state->fault.seconds = std::atof(take_until(text, ':').c_str());
    state->fault.parts = text;
    state->active = true;
  }
  return state;
}

State& state() {
  static State* const state = make_state();
  return *state;
}

bool is_meant(const char* path) {
  const std::lock_guard lock(state().mutex);
  if (!state().active || !path) return false;
  const std::string name = path;
  for (std::string parts = state().fault.parts; !parts.empty();)
    if (name.find(take_until(parts, '|')) != name.npos) return true;
  return false;
}

// Counts a call; true and errno when it has to fail.
bool fails(Fault::At at) {
  const std::lock_guard lock(state().mutex);
  const Fault& fault = state().fault;
  if (!state().active || fault.at != at) return false;
  const std::int64_t number = state().calls++;
  if (number < fault.after) return false;
  if (number == fault.after) state().since = Clock::now();
  const bool fails = fault.seconds > 0 ? Clock::now() - state().since < std::chrono::duration<double>(fault.seconds)
                                       : number < fault.after + fault.calls;
  if (!fails) return false;
  ++state().failures;
  errno = fault.code;
  return true;
}

void watch(int fd, bool on) {
  if (fd >= 0 && fd < static_cast<int>(state().watched.size())) state().watched[static_cast<std::size_t>(fd)] = on;
}

bool is_watched(int fd) {
  return fd >= 0 && fd < static_cast<int>(state().watched.size()) && state().watched[static_cast<std::size_t>(fd)];
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

template <class Open>
int open_watched(const char* path, Open open) {
  const bool meant = is_meant(path);
  if (meant && fails(Fault::At::open)) return -1;
  const int fd = open();
  watch(fd, meant);
  return fd;
}

template <class Read>
ssize_t read_watched(int fd, Read read) {
  return is_watched(fd) && fails(Fault::At::read) ? -1 : read();
}

std::string path_of(DIR* folder) {
  std::array<char, 4096> path{};
  const auto length =
      ::readlink(("/proc/self/fd/" + std::to_string(::dirfd(folder))).c_str(), path.data(), path.size());
  return {path.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

mode_t mode_in(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
}

}  // namespace

void inject(const Fault& fault) {
  const std::lock_guard lock(state().mutex);
  state().fault = fault;
  state().calls = state().failures = 0;
  state().active = true;
}

void clear_fault() {
  const std::lock_guard lock(state().mutex);
  state().active = false;
}

std::int64_t fault_calls() {
  const std::lock_guard lock(state().mutex);
  return state().calls;
}

std::int64_t fault_failures() {
  const std::lock_guard lock(state().mutex);
  return state().failures;
}

}  // namespace millrace::test

extern "C" {

using namespace millrace::test;

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  static const auto real = next<int (*)(const char*, int, ...)>("open");
  return open_watched(path, [&] { return real(path, flags, mode); });
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  static const auto real = next<int (*)(const char*, int, ...)>("open64");
  return open_watched(path, [&] { return real(path, flags, mode); });
}

int __open_2(const char* path, int flags) {
  return open(path, flags);
}

int __open64_2(const char* path, int flags) {
  return open64(path, flags);
}

int close(int fd) {
  static const auto real = next<int (*)(int)>("close");
  watch(fd, false);
  return real(fd);
}

ssize_t read(int fd, void* out, size_t bytes) {
  static const auto real = next<ssize_t (*)(int, void*, size_t)>("read");
  return read_watched(fd, [&] { return real(fd, out, bytes); });
}

ssize_t pread(int fd, void* out, size_t bytes, off_t at) {
  static const auto real = next<ssize_t (*)(int, void*, size_t, off_t)>("pread");
  return read_watched(fd, [&] { return real(fd, out, bytes, at); });
}

ssize_t pread64(int fd, void* out, size_t bytes, off64_t at) {
  static const auto real = next<ssize_t (*)(int, void*, size_t, off64_t)>("pread64");
  return read_watched(fd, [&] { return real(fd, out, bytes, at); });
}

// What std::filesystem looks with.
int stat(const char* path, struct stat* out) noexcept {
  static const auto real = next<int (*)(const char*, struct stat*)>("stat");
  return is_meant(path) && fails(Fault::At::stat) ? -1 : real(path, out);
}

dirent* readdir(DIR* folder) {
  static const auto real = next<dirent* (*)(DIR*)>("readdir");
  return is_meant(path_of(folder).c_str()) && fails(Fault::At::list) ? nullptr : real(folder);
}

ssize_t __read_chk(int fd, void* out, size_t bytes, size_t) {
  return read(fd, out, bytes);
}

ssize_t __pread_chk(int fd, void* out, size_t bytes, off_t at, size_t) {
  return pread(fd, out, bytes, at);
}

ssize_t __pread64_chk(int fd, void* out, size_t bytes, off64_t at, size_t) {
  return pread64(fd, out, bytes, at);
}
}
