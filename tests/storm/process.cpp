#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>
#include <thread>

#include "millrace/core/error.h"
#include "millrace/core/stopwatch.h"
#include "process.h"

extern char** environ;

namespace millrace::storm {
namespace {

constexpr const char* mark_name = "MILLRACE_STORM_JOB";

std::string quoted(const std::string& word) {
  return word.find_first_of(" '\"<>[]{}()*?$&;|") == word.npos ? word : "'" + word + "'";
}

std::vector<std::string> environment_with(const std::string& mark, const fs::path& temporary) {
  std::vector<std::string> variables = {fmt::format("{}={}", mark_name, mark), "TMPDIR=" + temporary.string(),
                                        "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};
  for (char** variable = environ; *variable; ++variable)
    if (!std::string_view(*variable).starts_with("TMPDIR=")) variables.emplace_back(*variable);
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::string read_proc(pid_t pid, const char* file) {
  std::ifstream in(fmt::format("/proc/{}/{}", pid, file), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::optional<std::string> variable_of(const std::string& environment, const std::string& name) {
  for (std::size_t at = 0; at < environment.size();) {
    const auto end = std::min(environment.find('\0', at), environment.size());
    const std::string_view variable(environment.data() + at, end - at);
    if (variable.starts_with(name + "=")) return std::string(variable.substr(name.size() + 1));
    at = end + 1;
  }
  return std::nullopt;
}

// "R", "S", "D", "Z"...
char state_of(pid_t pid) {
  const auto stat = read_proc(pid, "stat");
  const auto name_end = stat.rfind(')');
  return name_end == stat.npos || name_end + 2 >= stat.size() ? '?' : stat[name_end + 2];
}

void sleep_ms(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

}  // namespace

std::string Command::text() const {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : " ") + quoted(word);
  return text;
}

Command mpirun(int ranks) {
  return {{"mpirun", "--oversubscribe", "--bind-to", "none", "-n", std::to_string(ranks)}};
}

std::string output_of(const Command& command) {
  std::string output;
  std::FILE* pipe = ::popen((command.text() + " 2>&1").c_str(), "r");
  ensure(pipe != nullptr, "a command can be started");
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  if (::pclose(pipe) != 0) fail(Exit::io, "{}: {}", command.text(), output);
  return output;
}

void adopt_orphans() {
  ensure(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "the storm waits for orphans");
}

Job::Job(const Command& command, const fs::path& output, const fs::path& temporary)
    : under_mpirun_(command.words.front() == "mpirun") {
  static std::atomic<int> jobs = 0;
  mark_ = fmt::format("{}-{}", ::getpid(), jobs++);
  auto words = command.words;
  auto variables = environment_with(mark_, temporary);
  const auto argv = pointers(words), envp = pointers(variables);
  const int out = ::open(output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (out < 0) fail(Exit::io, "cannot write {}", output.string());
  launcher_ = ::fork();
  if (launcher_ == 0) {  // only calls that a child of a threaded process may make
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::dup2(out, 1);
    ::dup2(out, 2);
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, 0);
    ::execvpe(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ::close(out);
  ensure(launcher_ > 0, "a process can be started");
}

Job::~Job() {
  kill_all();
  if (launcher_ > 0) ::waitpid(launcher_, nullptr, 0);
}

bool Job::owns(pid_t pid) const {
  return variable_of(read_proc(pid, "environ"), mark_name) == mark_;
}

std::vector<pid_t> Job::processes() const {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    const auto pid = static_cast<pid_t>(std::stol(name));
    if (owns(pid)) found.push_back(pid);
  }
  return found;
}

std::map<int, pid_t> Job::ranks() const {
  std::map<int, pid_t> ranks;
  for (const pid_t pid : processes()) {
    const auto rank = variable_of(read_proc(pid, "environ"), "OMPI_COMM_WORLD_RANK");
    if (rank) ranks[std::stoi(*rank)] = pid;
  }
  if (!under_mpirun_ && launcher_ > 0) ranks[0] = launcher_;
  return ranks;
}

std::string Job::picture() const {
  std::string text;
  for (const auto& [rank, pid] : ranks())
    text += fmt::format("    rank {} (pid {}) {}, user and system ticks {}\n", rank, pid, state_of(pid), [&] {
      const auto stat = read_proc(pid, "stat");
      std::string rest = stat.substr(std::min(stat.size(), stat.rfind(')') + 2)), ticks;
      std::size_t field = 3, at = 0;
      for (std::size_t end; (end = rest.find(' ', at)) != rest.npos; at = end + 1, ++field)
        if (field == 14 || field == 15) ticks += rest.substr(at, end - at) + " ";
      return ticks;
    }());
  return text;
}

void Job::kill_all() const {
  for (const pid_t pid : processes()) ::kill(pid, SIGKILL);
}

Ending Job::wait(double seconds, const std::function<void(Job&)>& watch) {
  const Stopwatch since_start;
  Ending ending;
  int status = 0;
  while (::waitpid(launcher_, &status, WNOHANG) == 0) {
    if (!ending.timed_out && since_start.seconds() > seconds) {
      ending.timed_out = true;
      ending.picture = picture();
      kill_all();
    }
    watch(*this);
    sleep_ms(1);
  }
  launcher_ = -1;
  ending.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);

  // Ten seconds, and more on a machine that is slow or stands still: counted are the looks.
  auto left = processes();
  for (int looks = 500; !left.empty() && looks > 0; --looks, left = processes()) {
    for (const pid_t pid : left) ::waitpid(pid, nullptr, WNOHANG);
    sleep_ms(20);
  }
  for (const pid_t pid : left) {
    ending.survivors.push_back(fmt::format("pid {} {} {}", pid, state_of(pid), read_proc(pid, "comm")));
    ::kill(pid, SIGKILL);
  }
  return ending;
}

std::vector<int> cores() {
  cpu_set_t allowed;
  ensure(sched_getaffinity(0, sizeof allowed, &allowed) == 0, "the kernel tells the cores");
  std::vector<int> found;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed)) found.push_back(core);
  return found;
}

void stay_on(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ensure(sched_setaffinity(0, sizeof one, &one) == 0, "a thread can stay on its core");
}

void work_on(const std::vector<int>& cores, std::size_t threads, const std::function<void()>& work) {
  std::vector<std::jthread> workers;
  for (std::size_t i = 0; i < (threads > 0 ? threads : cores.size()); ++i)
    workers.emplace_back([&work, core = cores[i % cores.size()]] {
      stay_on(core);
      work();
    });
}

}  // namespace millrace::storm
