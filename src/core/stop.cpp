#include "millrace/core/stop.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace millrace::stop {

namespace {

static_assert(std::atomic<int>::is_always_lock_free, "signal handlers may only touch lock-free atomics");
static_assert(std::atomic<time_t>::is_always_lock_free, "signal handlers may only touch lock-free atomics");

constexpr time_t impatience_seconds = 5;

std::atomic<int> first_signal{0};
std::atomic<time_t> last_interrupt{-impatience_seconds - 1};

void leave_when_impatient() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  if (now.tv_sec - last_interrupt.exchange(now.tv_sec) < impatience_seconds) ::_exit(128 + SIGINT);
}

// Leaving takes until the step is done and saved, and somebody waits at the terminal.
void tell_what_happens() {
  constexpr char text[] = "\nstopping; Ctrl-C again within 5 seconds ends at once\n";
  static_assert(impatience_seconds == 5);
  const int before = errno;
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, sizeof text - 1);
  errno = before;
}

void on_signal(int signal) {
  if (signal == SIGINT) leave_when_impatient();
  request(signal);
  if (signal == SIGINT) tell_what_happens();
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

void install() {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) handle(signal, on_signal);
  if (!is_ignored(SIGHUP)) handle(SIGHUP, on_signal);  // the terminal closes; `nohup` ignores it
  handle(SIGPIPE, SIG_IGN);  // a pipe whose reader left is an error of that write (EPIPE), not of the process
}

bool requested() {
  return signal_number() != 0;
}

int signal_number() {
  return first_signal.load();
}

void request(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
}

}  // namespace millrace::stop
