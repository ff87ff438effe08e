#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

namespace millrace {

// The processor time that the processes of a control group (version 1 or 2) may use together, as a number of CPUs,
// rounded up: 3 for a container with `--cpus=2.5`.
struct CpuQuota {
  std::uint64_t group;  // tells processes of a host whether they share it
  int cpus;             // at least 1
  bool operator==(const CpuQuota&) const = default;
};

// The quotas of all groups that limit this process; usually none. `root` stands in for / in tests.
std::vector<CpuQuota> cpu_quotas(const std::filesystem::path& root = "/");

}  // namespace millrace
