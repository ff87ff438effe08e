#pragma once
#include <cerrno>
#include <cstdint>
#include <string>

// Storage that fails: a library that stands before libc's open, read, pread, stat and readdir. Tests link it; a whole
// program gets it by LD_PRELOAD and MILLRACE_FAULT="ERRNO:AFTER:SECONDS:PART|PART...", see Fault.
namespace millrace::test {

struct Fault {
  enum class At { read, open, stat, list };

  std::string parts;       // files, or for `list` folders, whose path holds one of these, separated by |
  int code = EIO;          // what a call that fails says
  At at = At::read;        // what fails
  std::int64_t after = 0;  // so many calls are left alone first
  std::int64_t calls = 0;  // so many fail then
  double seconds = 0;      // or all that come within this time from then on
};

// From now on, for files that are opened from now on. Counts begin at 0.
void inject(const Fault& fault);
// Nothing fails any more.
void clear_fault();
// Since inject(): calls for these files, and those that have failed.
std::int64_t fault_calls();
std::int64_t fault_failures();

}  // namespace millrace::test
