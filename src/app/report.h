#pragma once
#include <string>
#include <vector>

#include "millrace/core/error.h"

namespace millrace {

// To stdout, with a line's end.
void print_out(const std::string& text);

// The last words of a process: to the screen, and to this rank's log file where it is open. `who` says whose they are
// ("rank 2 on node7") where it matters.
void report(const Error& error, const std::string& who = {});

// To stderr: keys that were typed and do nothing here; nothing where there are none.
void report_unread(const std::vector<std::string>& keys);

}  // namespace millrace
