#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace millrace {

// What the process ends with; scripts and Slurm read these (docs/operations.md).
enum class Exit : int {
  done = 0,
  usage = 2,          // wrong command line or configuration
  bug = 70,           // an `ensure` failed
  io = 74,            // something on disk is missing or broken
  requeue = 75,       // state saved, please start me again
  suspect_node = 76,  // a hang, or a failure that speaks against a node
  bad_data = 77,      // too many bad samples
  numerics = 78,      // numbers that are not finite, or losses that jump, stopped the run
};

// A run that cannot continue. `what()` says what happened to which file or key; `hint` says what to do about it.
class Error : public std::runtime_error {
 public:
  // Both texts are stored without_secrets (core/secrets.h): an error is printed, logged, and sent to other ranks.
  Error(Exit exit, const std::string& message, const std::string& hint = {});

  Exit exit() const { return exit_; }
  const std::string& hint() const { return hint_; }

 private:
  Exit exit_;
  std::string hint_;
};

// `error` with its message behind `key` ("samples.prompts: ...").
Error about_key(std::string_view key, const Error& error);

// Runs `action`; an Error of it is rethrown as one about `key`.
template <class Action>
auto with_key(std::string_view key, Action action) {
  try {
    return action();
  } catch (const Error& error) {
    throw about_key(key, error);
  }
}

// An error that should be impossible.
inline Error bug(const std::string& message) {
  return {Exit::bug, message, "please report this with the output of `millrace env`"};
}

template <class... Args>
[[noreturn]] void fail(Exit exit, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(exit, fmt::format(format, std::forward<Args>(args)...));
}

// Trips on a mistake of ours, never on bad input. (Clang 14 of the fuzz targets lacks std::source_location.)
inline void ensure(bool condition, std::string_view what, const char* file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
  if (!condition) throw Error(Exit::bug, fmt::format("{}:{}: {}", file, line, what), "please report this");
}

}  // namespace millrace
