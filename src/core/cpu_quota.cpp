#include "millrace/core/cpu_quota.h"

#include <sys/stat.h>

#include <fstream>

#include "control_group.h"

namespace millrace {

// Microseconds of processor time in each period: "400000 100000" or "max 100000"; version 1 has a file for each, and -1
// for no quota.
static std::int64_t quota_cpus(const ControlGroup& group) {
  std::int64_t quota = 0, period = 0;
  if (group.version == 2) {
    std::ifstream(group.folder / "cpu.max") >> quota >> period;
  } else {
    std::ifstream(group.folder / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group.folder / "cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? (quota + period - 1) / period : 0;
}

std::vector<CpuQuota> cpu_quotas(const std::filesystem::path& root) {
  std::vector<CpuQuota> quotas;
  for (const auto& group : control_groups("cpu", root)) {
    const auto cpus = quota_cpus(group);
    struct stat status {};
    // The path is not the same for all who see the group; its inode is.
    if (cpus > 0 && ::stat(group.folder.c_str(), &status) == 0)
      quotas.push_back({status.st_ino, static_cast<int>(cpus)});
  }
  return quotas;
}

}  // namespace millrace
