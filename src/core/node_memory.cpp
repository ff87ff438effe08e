#include "millrace/core/node_memory.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "control_group.h"

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
  const char* limit;
  const char* usage;
  std::array<const char*, 2> cached;  // entries of memory.stat
};
constexpr Version version_1{
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
constexpr Version version_2{"memory.max", "memory.current", {"inactive_file", "active_file"}};

std::uint64_t used_bytes(const stdfs::path& group, const Version& version) {
  std::uint64_t used = 0, cached = 0;
  std::ifstream(group / version.usage) >> used;
  std::ifstream stat(group / "memory.stat");
  std::string name;
  for (std::uint64_t bytes = 0; stat >> name >> bytes;)
    if (name == version.cached[0] || name == version.cached[1]) cached += bytes;
  return used - std::min(used, cached);
}

// The least of the limits of the process's groups, less what is `used` below each; a file that holds no number ("max")
// sets none.
std::uint64_t group_bytes(const stdfs::path& root, bool less_used) {
  std::uint64_t least = unlimited;
  for (const auto& group : control_groups("memory", root)) {
    const auto& version = group.version == 2 ? version_2 : version_1;
    std::uint64_t limit = 0;
    if (!(std::ifstream(group.folder / version.limit) >> limit)) continue;
    if (less_used) limit -= std::min(limit, used_bytes(group.folder, version));
    least = std::min(least, limit);
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
