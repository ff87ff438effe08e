#include "millrace/core/node_memory.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

namespace millrace {

namespace stdfs = std::filesystem;

namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

// "MemTotal:       65862936 kB"
std::uint64_t kernel_bytes(const stdfs::path& root, std::string_view name) {
  std::ifstream lines(root / "proc/meminfo");
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name)) return std::stoull(line.substr(name.size())) * 1024;
  return unlimited;
}

// Files of a version of control groups.
struct Version {
  const char* mount;
  const char* limit;
  const char* usage;
  std::array<const char*, 2> cached;  // entries of memory.stat
};
constexpr Version version_1{"sys/fs/cgroup/memory",
                            "memory.limit_in_bytes",
                            "memory.usage_in_bytes",
                            {"total_inactive_file", "total_active_file"}};
constexpr Version version_2{"sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};

std::uint64_t used_bytes(const stdfs::path& group, const Version& version) {
  std::uint64_t used = 0, cached = 0;
  std::ifstream(group / version.usage) >> used;
  std::ifstream stat(group / "memory.stat");
  std::string name;
  for (std::uint64_t bytes = 0; stat >> name >> bytes;)
    if (name == version.cached[0] || name == version.cached[1]) cached += bytes;
  return used - std::min(used, cached);
}

// The least of a group's and its ancestors' limits, less what is `used` below each; a file that holds no number ("max")
// sets none.
std::uint64_t min_limit(const stdfs::path& root, stdfs::path group, const Version& version, bool less_used) {
  std::uint64_t least = unlimited;
  while (true) {
    const auto folder = root / version.mount / group;
    std::uint64_t limit = 0;
    if (std::ifstream(folder / version.limit) >> limit) {
      if (less_used) limit -= std::min(limit, used_bytes(folder, version));
      least = std::min(least, limit);
    }
    if (group.empty()) return least;
    group = group.parent_path();
  }
}

// Lines "HIERARCHY:CONTROLLERS:/PATH"; version 2 has hierarchy 0 and names no controllers.
std::uint64_t group_bytes(const stdfs::path& root, bool less_used) {
  std::uint64_t least = unlimited;
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const auto path = line.find(":/");
    if (path == line.npos) continue;
    const bool is_2 = line.starts_with("0::");
    if (!is_2 && !line.substr(0, path).ends_with(":memory")) continue;
    least = std::min(least, min_limit(root, line.substr(path + 2), is_2 ? version_2 : version_1, less_used));
  }
  return least;
}

}  // namespace

std::uint64_t node_memory_bytes(const stdfs::path& root) {
  return std::min(kernel_bytes(root, "MemTotal:"), group_bytes(root, false));
}

std::uint64_t free_node_memory_bytes(const stdfs::path& root) {
  return std::min(kernel_bytes(root, "MemAvailable:"), group_bytes(root, true));
}

}  // namespace millrace
