#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

// One small interface over Boost.Log. Every line: time, level, role/rank, step, text. The time is that of the day on
// a terminal, and date and time in UTC elsewhere.
namespace millrace::log {

enum class Level { debug, info, warning, error };

struct Options {
  std::string role = "";  // "trainer", "producer", or empty before roles are known
  int rank = 0;
  bool console = true;    // this rank prints to stderr (rank 0 of each role)
  std::string file = {};  // this rank's own log file; empty = none
  // A file will be opened later: the first 1,000 lines from now on go to its beginning.
  bool awaits_file = false;
};

// Replaces the sinks. Before the first call everything goes to stderr.
void init(const Options& options);
// From now on lines go to this rank's log file alone: what ends the process is printed by whoever ends it.
void close_console();
// The step shown in the prefix from now on; 0 = none.
void set_step(std::int64_t step);
void flush();
void write(Level level, std::string_view text);

// One redrawn line on a terminal (only when stderr is one), cleared before any other output. An empty text removes it.
void progress(std::string_view text);
bool on_terminal();

template <class... Args>
void debug(fmt::format_string<Args...> f, Args&&... a) {
  write(Level::debug, fmt::format(f, std::forward<Args>(a)...));
}
template <class... Args>
void info(fmt::format_string<Args...> f, Args&&... a) {
  write(Level::info, fmt::format(f, std::forward<Args>(a)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> f, Args&&... a) {
  write(Level::warning, fmt::format(f, std::forward<Args>(a)...));
}
template <class... Args>
void error(fmt::format_string<Args...> f, Args&&... a) {
  write(Level::error, fmt::format(f, std::forward<Args>(a)...));
}

}  // namespace millrace::log
