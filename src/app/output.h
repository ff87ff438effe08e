#pragma once
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "millrace/core/error.h"

namespace millrace {

// To stdout, with a line's end. Neither this nor `say` fails: what a command that was computing for days could not tell
// is no reason to lose it. What exists to be printed is checked at its end by `check_out`.
void print_out(const std::string& text);

// The same as it is, without an end of the line.
template <class... Args>
void say(fmt::format_string<Args...> format, Args&&... args) {
  const auto text = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// Error(io) where something on stdout could not be written.
void check_out();

// The last words of a process: to the screen, and to this rank's log file where it is open. `who` says whose they are
// ("rank 2 on node7") where it matters.
void print_error(const Error& error, const std::string& who = {});

// To stderr: keys that were typed and do nothing here; nothing where there are none.
void report_unread(const std::vector<std::string>& keys);

}  // namespace millrace
