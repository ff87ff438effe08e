#include "millrace/core/process_name.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <random>
#include <regex>

#include "millrace/core/hash.h"
#include "millrace/core/text.h"

namespace millrace {
namespace {

// Where a process number means one process: a machine since it was started, and on it a container. A host's name would
// not do, since containers and cloned machines share theirs.
std::string read_place() {
  char space[256] = {};
  const std::string boot = boot_id();
  if (boot.empty() || ::readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) {
    std::random_device random;
    return fmt::format("{:08x}{:08x}", random(), random());
  }
  return fmt::format("{:016x}", hash64(fmt::format("{}\n{}\n{}", boot, host_name(), space)));
}

// Ended, but its parent has not asked how: in containers without an init that stays so.
bool is_zombie(pid_t pid) {
  std::string stat;
  std::getline(std::ifstream(fmt::format("/proc/{}/stat", pid)), stat);
  const auto name_end = stat.rfind(')');
  return name_end != stat.npos && stat.compare(name_end, 3, ") Z") == 0;
}

const std::string& place() {
  static const std::string place = read_place();
  return place;
}

}  // namespace

std::string host_name() {
  char name[256] = "localhost";
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

std::string process_name() {
  return fmt::format("{}-{}", place(), ::getpid());
}

std::string temporary_name(const std::string& path) {
  return fmt::format("{}.tmp-{}-{:08x}", path, process_name(), std::random_device()());
}

std::optional<std::string> writer_of_temporary(const std::filesystem::path& name) {
  static const std::regex form(R"(\.tmp-([0-9a-f]{16}-[0-9]+)(-[0-9a-f]{8})?)");
  const auto extension = name.extension().string();
  std::smatch parts;
  return std::regex_match(extension, parts, form) ? std::optional(parts[1].str()) : std::nullopt;
}

bool process_is_gone(std::string_view name) {
  const auto dash = name.find('-');
  if (dash == name.npos || name.substr(0, dash) != place()) return false;
  const auto pid = parse_number<pid_t>(name.substr(dash + 1));
  if (!pid || *pid <= 0) return false;
  return (::kill(*pid, 0) != 0 && errno == ESRCH) || is_zombie(*pid);
}

}  // namespace millrace
