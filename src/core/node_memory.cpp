#include "millrace/core/node_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace millrace {

namespace stdfs = std::filesystem;

namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

// "MemTotal:       65862936 kB"
std::uint64_t installed_bytes(const stdfs::path& root) {
  std::ifstream lines(root / "proc/meminfo");
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("MemTotal:")) return std::stoull(line.substr(9)) * 1024;
  return unlimited;
}

// The least limit of a group and those above it; a file that holds no number ("max") sets none.
std::uint64_t min_limit(const stdfs::path& mount, stdfs::path group, const char* file) {
  std::uint64_t least = unlimited;
  while (true) {
    std::uint64_t limit = 0;
    if (std::ifstream(mount / group / file) >> limit) least = std::min(least, limit);
    if (group.empty()) return least;
    group = group.parent_path();
  }
}

// Lines "HIERARCHY:CONTROLLERS:/PATH"; version 2 has hierarchy 0 and names no controllers.
std::uint64_t group_limit(const stdfs::path& root) {
  std::uint64_t least = unlimited;
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const auto path = line.find(":/");
    if (path == line.npos) continue;
    const stdfs::path group = line.substr(path + 2);
    if (line.starts_with("0::")) {
      least = std::min(least, min_limit(root / "sys/fs/cgroup", group, "memory.max"));
    } else if (line.substr(0, path).ends_with(":memory")) {
      least = std::min(least, min_limit(root / "sys/fs/cgroup/memory", group, "memory.limit_in_bytes"));
    }
  }
  return least;
}

}  // namespace

std::uint64_t node_memory_bytes(const stdfs::path& root) {
  return std::min(installed_bytes(root), group_limit(root));
}

}  // namespace millrace
