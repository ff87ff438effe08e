#include "output.h"

#include <fmt/ranges.h>

#include "millrace/core/log.h"
#include "millrace/core/visible.h"

namespace millrace {

void print_out(const std::string& text) {
  say("{}{}", text, text.ends_with('\n') ? "" : "\n");
}

void check_out() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout))
    throw Error(Exit::io, "what stands on standard output is not whole: it could not be written");
}

void print_error(const Error& error, const std::string& who) {
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
  if (keys.empty()) return;
  std::fputs(fmt::format("millrace: this command does not read {}\n", fmt::join(keys, ", ")).c_str(), stderr);
}

}  // namespace millrace
