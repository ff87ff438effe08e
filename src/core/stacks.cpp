#include "millrace/core/stacks.h"

#include <cxxabi.h>
#include <dirent.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "millrace/core/clock.h"
#include "millrace/core/files.h"
#include "millrace/core/phase.h"
#include "millrace/core/stopwatch.h"

namespace millrace::stacks {
namespace {

constexpr double patience_seconds = 1;
constexpr int max_frames = 100;
constexpr int handler_frames = 2;  // of the handler and of the kernel's way into it

constexpr int asked = 0, answering = -1, deaf = -2;  // else the number of frames
struct Answer {
  std::atomic<pid_t> thread{0};
  std::atomic<int> frames{asked};
  void* frame[max_frames];
};
std::array<Answer, 1024> answers;  // threads beyond these are only named
int signal_number = 0;

struct Target {
  std::filesystem::path file;
  std::string title;
};
std::atomic<Target*> target = nullptr;  // set once, never destroyed: threads may want it until the process is gone
std::atomic<bool> under_way{false}, ended{false};

pid_t this_thread() {
  return static_cast<pid_t>(::syscall(SYS_gettid));
}

void answer(int) {
  const int error = errno;
  const pid_t self = this_thread();
  for (auto& place : answers) {
    const pid_t thread = place.thread;
    if (thread == 0) break;
    if (thread != self) continue;
    if (int state = asked; place.frames.compare_exchange_strong(state, answering))
      place.frames = ::backtrace(place.frame, max_frames);
    break;
  }
  errno = error;
}

// A signal that nobody has taken, for good.
int take_signal() {
  void* frame[1];
  ::backtrace(frame, 1);  // loads what a handler must not load
  for (int signal = SIGRTMAX - 1; signal > SIGRTMIN; --signal) {
    struct sigaction present {};
    if (::sigaction(signal, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_handler = answer;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    ::sigemptyset(&action.sa_mask);
    if (::sigaction(signal, &action, nullptr) == 0) return signal;
  }
  return 0;
}

void prepare() {
  static std::once_flag once;
  std::call_once(once, [] { signal_number = take_signal(); });
}

std::vector<pid_t> list_threads() {
  std::vector<pid_t> threads;
  DIR* const folder = ::opendir("/proc/self/task");
  if (!folder) return threads;
  while (const dirent* entry = ::readdir(folder))
    if (const int thread = std::atoi(entry->d_name); thread > 0) threads.push_back(thread);
  ::closedir(folder);
  std::ranges::sort(threads);  // the main thread is the first
  std::erase(threads, this_thread());
  return threads;
}

// A file of /proc, empty where it is not ours to read.
std::string read_about(pid_t thread, const char* name) {
  char text[4096];
  const int fd = ::open(fmt::format("/proc/self/task/{}/{}", thread, name).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t size = ::read(fd, text, sizeof text);
  ::close(fd);
  return {text, size > 0 ? static_cast<std::size_t>(size) : 0};
}

std::string read_line(pid_t thread, const char* name) {
  const auto text = read_about(thread, name);
  return text.substr(0, text.find('\n'));
}

bool blocks_signal(pid_t thread) {
  constexpr std::string_view name = "SigBlk:";
  const auto status = read_about(thread, "status");
  const auto at = status.find(name);
  return at != status.npos &&
         (std::strtoull(status.c_str() + at + name.size(), nullptr, 16) >> (signal_number - 1) & 1) != 0;
}

// "thread 4711 pt_main_thread, state S in futex_wait_queue"
std::string describe_thread(pid_t thread) {
  const auto stat = read_line(thread, "stat"), place = read_line(thread, "wchan");
  const auto name_end = stat.rfind(") ");
  return fmt::format("thread {} {}, state {}{}", thread, read_line(thread, "comm"),
                     name_end == stat.npos ? '?' : stat[name_end + 2],
                     place.empty() || place == "0" ? "" : " in " + place);
}

// "millrace::run_loop(...)+0x1f (millrace+0x41234)"; the second part is for addr2line where the first is missing.
std::string describe_frame(void* frame, bool interrupted) {
  const auto address = reinterpret_cast<std::uintptr_t>(frame);
  Dl_info found{};
  // A return address may lie behind the end of a function whose last deed is the call.
  if (::dladdr(static_cast<const char*>(frame) - (interrupted ? 0 : 1), &found) == 0 || !found.dli_fname)
    return fmt::format("{:#x}", address);
  auto place = fmt::format("({}+{:#x})", std::filesystem::path(found.dli_fname).filename().string(),
                           address - reinterpret_cast<std::uintptr_t>(found.dli_fbase));
  if (!found.dli_sname) return place;
  int status = 0;
  char* const plain = abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, &status);
  const std::string name = plain ? plain : found.dli_sname;
  std::free(plain);
  return fmt::format("{}+{:#x} {}", name, address - reinterpret_cast<std::uintptr_t>(found.dli_saddr), place);
}

std::string describe_stack(const Answer& place) {
  const int frames = place.frames;
  if (frames == deaf) return "  blocks signals\n";
  if (frames <= 0) return "  no answer\n";
  std::string text;
  for (int i = handler_frames; i < frames; ++i)
    text += fmt::format("  #{} {}\n", i - handler_frames, describe_frame(place.frame[i], i == handler_frames));
  return text;
}

void ask(std::size_t asked_threads, const std::vector<pid_t>& threads) {
  for (auto& place : answers) place.thread = 0;
  if (signal_number == 0) return;
  for (std::size_t i = 0; i < asked_threads; ++i) {
    answers[i].frames = blocks_signal(threads[i]) ? deaf : asked;
    answers[i].thread = threads[i];
  }
  for (std::size_t i = 0; i < asked_threads; ++i) ::syscall(SYS_tgkill, ::getpid(), threads[i], signal_number);
  const auto all_there = [&] {
    return std::all_of(answers.begin(), answers.begin() + static_cast<std::ptrdiff_t>(asked_threads),
                       [](const Answer& place) { return place.frames > 0 || place.frames == deaf; });
  };
  for (const Stopwatch since; !all_there() && since.seconds() < patience_seconds;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void write_file(const Target& to) {
  const auto text = fmt::format("{}, process {}, {} step {}, Unix time {:.0f}\n\n{}", to.title, ::getpid(),
                                phase::current.load(), phase::step.load(), unix_seconds(), describe_threads());
  // A link of that name may lead to a file of somebody else.
  const int fd = ::open(to.file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) return;
  std::string_view rest = text;
  write_all(fd, rest);  // as much as there is room for
  ::close(fd);
}

}  // namespace

void write_to(std::filesystem::path file, std::string title) {
  prepare();
  target = new Target{std::move(file), std::move(title)};
}

void start_writing() {
  const Target* const present = target;
  if (!present || under_way.exchange(true)) return;
  ended = false;
  std::thread([present] {
    try {
      write_file(*present);
    } catch (const std::exception&) {  // no stacks, but the run has to end in any case
    }
    ended = true;
    under_way = false;
  }).detach();
}

bool written() {
  return ended;
}

std::string describe_threads() {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  prepare();
  const auto threads = list_threads();
  const auto asked_threads = std::min(threads.size(), answers.size());
  std::vector<std::string> heads;  // before the question changes the state
  for (const pid_t thread : threads) heads.push_back(describe_thread(thread));
  ask(asked_threads, threads);
  std::string text;
  for (std::size_t i = 0; i < threads.size(); ++i)
    text += heads[i] + '\n' + (i < asked_threads ? describe_stack(answers[i]) : "") + '\n';
  return text;
}

}  // namespace millrace::stacks
