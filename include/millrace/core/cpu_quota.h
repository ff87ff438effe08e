#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

namespace millrace {

// The processor time that the processes of a control group (version 1 or 2) may take together, as so many CPUs,
// whichever they are: of a container with `--cpus=2.5` that is 3.
struct CpuQuota {
  std::uint64_t group;  // by which processes of a host know whether they share it
  int cpus;             // at least 1
  bool operator==(const CpuQuota&) const = default;
};

// Of all groups that limit this process; mostly none. `root` stands in for / in tests.
std::vector<CpuQuota> cpu_quotas(const std::filesystem::path& root = "/");

}  // namespace millrace
