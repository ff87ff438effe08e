#include "faults.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#include "losses.h"
#include "millrace/core/phase.h"

namespace millrace::inject {
namespace {

using Clock = std::chrono::steady_clock;

struct Fault {
  Spec spec;
  std::int64_t seen = 0;  // calls that it is about
  bool happened = false;
  Clock::time_point since{};  // the first of those that it struck
};

// Never destroyed: files are written until the process is gone.
struct State {
  std::mutex mutex;
  std::vector<Fault> faults;
  int rank = 0;
  int trace = -1;  // descriptor
};

std::atomic<bool> armed{false};
pid_t owner = 0;  // children of this process go their own way

State& state() {
  static State* const state = new State;
  return *state;
}

int rank_of_process() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  return 0;
}

// Past our own write(), which would come back here.
void write_text(int fd, const std::string& text) {
  [[maybe_unused]] const auto written = ::syscall(SYS_write, fd, text.data(), text.size());
}

bool is_due(Fault& fault, Call call, const std::string& path) {
  const Spec& spec = fault.spec;
  if (spec.rank && *spec.rank != state().rank) return false;
  if (spec.call && *spec.call != call) return false;
  if (spec.step && *spec.step != phase::step) return false;
  if (!spec.phase.empty() && spec.phase != phase::current.load()) return false;
  if (!spec.path.empty() && !is_of(stable_name(path), spec.path)) return false;
  const auto number = ++fault.seen;
  if (!spec.onwards) return number == spec.first;
  if (number < spec.first) return false;
  if (number == spec.first) fault.since = Clock::now();
  const bool lasts = spec.seconds == 0 || spec.kind == Kind::slow;
  return lasts || Clock::now() - fault.since < std::chrono::duration<double>(spec.seconds);
}

[[noreturn]] void sleep_forever() {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

void act(const Spec& spec, const std::function<void()>& half, Verdict& verdict) {
  switch (spec.kind) {
    case Kind::kill:
    case Kind::power:
      if (half) half();
      if (spec.kind == Kind::power) lose_what_was_not_synced();
      ::kill(::getpid(), SIGKILL);
      sleep_forever();
    case Kind::stop:
      ::raise(SIGSTOP);  // of this thread, which then goes no step further; kill() may tell another one first
      break;
    case Kind::abort:
      std::abort();
    case Kind::exit:
      ::_exit(0);
    case Kind::hang:
      sleep_forever();
    case Kind::slow:
      std::this_thread::sleep_for(std::chrono::duration<double>(spec.seconds > 0 ? spec.seconds : 1));
      break;
    case Kind::eio:
      verdict.error = EIO;
      break;
    case Kind::enospc:
      verdict.error = ENOSPC;
      break;
    case Kind::edquot:
      verdict.error = EDQUOT;
      break;
    case Kind::shorten:
      verdict.shorten = true;
      break;
    case Kind::nosync:
      verdict.skip = true;
      break;
    case Kind::nan:
      verdict.poison = true;
      break;
    case Kind::flip:
      verdict.flip = true;
      break;
  }
}

std::string where() {
  return fmt::format("{}\t{}", phase::step.load(), phase::current.load());
}

}  // namespace

void arm(const std::vector<Spec>& specs, const std::string& count_folder) {
  owner = ::getpid();
  state().rank = rank_of_process();
  for (const Spec& spec : specs) {
    state().faults.push_back({spec, 0, false, {}});
    if (spec.kind == Kind::power) remember_losses();
  }
  if (!count_folder.empty()) {
    const auto file = fmt::format("{}/rank-{}.tsv", count_folder, state().rank);
    state().trace = static_cast<int>(
        ::syscall(SYS_openat, AT_FDCWD, file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_TRUNC | O_CLOEXEC, 0666));
    if (state().trace < 0) throw std::invalid_argument("--inject count: cannot write " + file);
  }
  armed = !specs.empty() || state().trace >= 0;
}

bool is_armed() {
  return armed && ::getpid() == owner;
}

Verdict at(Call call, const std::string& path, const std::function<void()>& half) {
  Verdict verdict;
  if (!is_armed()) return verdict;
  std::vector<Spec> due;
  {
    const std::lock_guard lock(state().mutex);
    if (state().trace >= 0)
      write_text(state().trace, fmt::format("{}\t{}\t{}\n", where(), name_of(call), stable_name(path)));
    for (Fault& fault : state().faults)
      if (is_due(fault, call, path)) {
        if (!fault.happened)
          write_text(
              2, fmt::format("millrace_inject: rank {}, step {}, {}: {} at {} {}\n", state().rank, phase::step.load(),
                             phase::current.load(), name_of(fault.spec.kind), name_of(call), path));
        fault.happened = true;
        due.push_back(fault.spec);
      }
  }
  for (const Spec& spec : due) act(spec, half, verdict);
  return verdict;
}

std::string path_of(int fd) {
  std::array<char, 4096> target{};
  const auto link = fmt::format("/proc/self/fd/{}", fd);
  const auto length = ::syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), target.data(), target.size());
  if (length <= 0) return {};
  const std::string path(target.data(), static_cast<std::size_t>(length));
  return is_of_disk(path) ? path : std::string();
}

bool is_of_disk(const std::string& path) {
  for (const char* other : {"/dev", "/proc", "/sys"})
    if (path == other || path.starts_with(std::string(other) + "/")) return false;
  return !path.empty() && path.find(":[") == path.npos;  // socket:[1234]
}

void report_unused() {
  if (!is_armed()) return;
  const std::lock_guard lock(state().mutex);
  for (const Fault& fault : state().faults)
    if (!fault.happened && fault.spec.rank.value_or(0) == state().rank)
      write_text(2, fmt::format("millrace_inject: rank {}: {} never came\n", state().rank, fault.spec.text));
}

}  // namespace millrace::inject
