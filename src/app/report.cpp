#include "report.h"

#include <fmt/ranges.h>

#include <cstdio>

#include "millrace/core/log.h"
#include "millrace/core/visible.h"

namespace millrace {

void print_out(const std::string& text) {
  std::fputs((text.ends_with('\n') ? text : text + '\n').c_str(), stdout);
  std::fflush(stdout);
}

void report(const Error& error, const std::string& who) {
  log::progress("");
  log::close_console();
  log::error("{}", error.what());
  std::string text = fmt::format("millrace: {}{}{}\n", who, who.empty() ? "" : ": ", visible(error.what()));
  if (!error.hint().empty()) {
    log::error("hint: {}", error.hint());
    text += fmt::format("  hint: {}\n", visible(error.hint()));
  }
  log::flush();
  std::fputs(text.c_str(), stderr);  // at once, so that the texts of several ranks stay whole
  std::fflush(stderr);
}

void report_unread(const std::vector<std::string>& keys) {
  if (!keys.empty()) fmt::print(stderr, "millrace: this command does not read {}\n", fmt::join(keys, ", "));
}

}  // namespace millrace
