#include "net/command_output.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/stop.h"
#include "millrace/core/storage_error.h"

namespace millrace {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds max_look{50};
constexpr std::chrono::seconds term_patience{2}, kill_patience{5};

// Commands get the machine's libraries, not those that bin/run of scripts/bundle has put before them.
std::vector<std::string> environment_of_commands() {
  const char* const before = std::getenv("MILLRACE_LIBRARY_PATH_BEFORE");
  std::vector<std::string> variables;
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view pair = *variable;
    const bool is_ours =
        pair.starts_with("LD_LIBRARY_PATH=") || pair.starts_with("OPAL_") || pair.starts_with("MILLRACE_LIBRARY_PATH");
    if (!before || !is_ours) variables.emplace_back(pair);
  }
  if (before && *before) variables.push_back(std::string("LD_LIBRARY_PATH=") + before);
  return variables;
}

// Runs `command` in a new session: standard input is empty, signals are as a shell expects them.
pid_t start_shell(const std::string& command, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::array<char*, 4> arguments = {const_cast<char*>("sh"), const_cast<char*>("-c"),
                                    const_cast<char*>(command.c_str()), nullptr};
  auto variables = environment_of_commands();
  std::vector<char*> environment;
  for (auto& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  pid_t shell = -1;
  const int failed = ::posix_spawn(&shell, "/bin/sh", &actions, &attributes, arguments.data(), environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  errno = failed;
  return failed ? -1 : shell;
}

}  // namespace

CommandOutput::CommandOutput(std::string command, const TransferOptions& options)
    : command_(std::move(command)), options_(options) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno("cannot make a pipe for", command_);
  shell_ = start_shell(command_, ends[1]);
  const int failed = errno;
  ::close(ends[1]);
  output_ = ends[0];
  if (shell_ > 0) return;
  close_output();
  errno = failed;
  fail_errno("cannot start", command_);
}

CommandOutput::~CommandOutput() {
  stop();
}

std::size_t CommandOutput::read(std::span<std::byte> buffer) {
  if (output_ < 0 || buffer.empty()) return 0;
  const auto silent_at = Clock::now() + options_.command_silence;
  while (!wait_for_output(std::min(max_look, std::chrono::ceil<milliseconds>(silent_at - Clock::now())))) {
    if (stop::requested()) {
      stop();
      throw StorageError(command_, "the run is asked to stop", fmt::format("'{}': the run is asked to stop", command_));
    }
    if (Clock::now() < silent_at) continue;
    stop();
    fail(Exit::io, "'{}' wrote nothing for {} s", command_, options_.command_silence.count());
  }
  ssize_t got = 0;
  while ((got = ::read(output_, buffer.data(), buffer.size())) < 0)
    if (errno != EINTR) fail_errno("cannot read the output of", command_);
  if (got == 0) check_end(Clock::now() + options_.command_end);
  return static_cast<std::size_t>(got);
}

void CommandOutput::finish() {
  if (output_ >= 0) pass_over_rest(Clock::now() + options_.command_end);
}

// NOTE [Behind an archive's end]: tar fills its last record up, a compressor adds a checksum, and a command whose pipe
// is closed before it has written those fails for no reason of its own. A whole archive behind the first is another
// matter: then the pipe is closed, and how the command takes it does not count.
void CommandOutput::pass_over_rest(Clock::time_point deadline) {
  constexpr std::size_t max_behind = 64 << 20;
  std::array<std::byte, 64 << 10> rest;
  for (std::size_t behind = 0; behind <= max_behind;) {
    if (wait_for_output(max_look)) {
      const std::size_t got = read(rest);
      if (got == 0) return;  // and it has ended well
      behind += got;
    } else if (wait_for_exit(Clock::now())) {  // something that it left behind may hold the pipe open
      return check_end(deadline);
    }
    if (Clock::now() > deadline) return check_end(deadline);
  }
  log::warning("'{}' writes on behind the end of its archive, which is not read", command_);
  stop();
}

// True when there is something to read, or the end.
bool CommandOutput::wait_for_output(milliseconds limit) const {
  const auto deadline = Clock::now() + limit;
  pollfd waiting{output_, POLLIN, 0};
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    const int ready = ::poll(&waiting, 1, static_cast<int>(std::max<milliseconds::rep>(left.count(), 0)));
    if (ready >= 0) return ready > 0;
    if (errno != EINTR) fail_errno("cannot wait for", command_);
  }
}

// Leaves the shell unreaped, so that nobody else can get its number meanwhile.
bool CommandOutput::wait_for_exit(Clock::time_point deadline) const {
  for (milliseconds look{1};; look = std::min(2 * look, max_look)) {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(shell_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno != EINTR)
      return true;  // somebody else has reaped it
    if (info.si_pid == shell_) return true;
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(look);
  }
}

void CommandOutput::check_end(Clock::time_point deadline) {
  close_output();
  if (!wait_for_exit(deadline)) {
    stop();
    fail(Exit::io, "'{}' still ran {} s after all was read of it", command_, options_.command_end.count());
  }
  const int status = reap();
  if (WIFSIGNALED(status)) fail(Exit::io, "'{}' was ended by signal {}", command_, WTERMSIG(status));
  if (status != 0) fail(Exit::io, "'{}' ended with status {}", command_, WEXITSTATUS(status));
}

void CommandOutput::close_output() {
  if (output_ >= 0) ::close(std::exchange(output_, -1));
}

int CommandOutput::reap() {
  ::kill(-shell_, SIGKILL);
  int status = -1;
  const pid_t reaped = ::waitpid(shell_, &status, WNOHANG);
  if (reaped != std::exchange(shell_, -1)) fail(Exit::io, "the status of '{}' is lost", command_);
  return status;
}

void CommandOutput::stop() {
  close_output();
  if (shell_ < 0) return;
  ::kill(-shell_, SIGTERM);
  if (!wait_for_exit(Clock::now() + term_patience)) ::kill(-shell_, SIGKILL);
  (void)wait_for_exit(Clock::now() + kill_patience);  // longer only where storage hangs
  ::kill(-shell_, SIGKILL);
  ::waitpid(std::exchange(shell_, -1), nullptr, WNOHANG);
}

}  // namespace millrace
