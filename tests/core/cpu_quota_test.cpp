#include "millrace/core/cpu_quota.h"

#include <gtest/gtest.h>

#include "core/temp_dir.h"

namespace millrace::test {
namespace {

// A root with files as Linux shows them.
class CpuQuotas : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    root_.write(path, text);
  }
  std::vector<int> cpus() const {
    std::vector<int> cpus;
    for (const auto& quota : cpu_quotas(root_.path())) cpus.push_back(quota.cpus);
    return cpus;
  }
  using Cpus = std::vector<int>;

  TempDir root_;
};

TEST_F(CpuQuotas, AreNoneWhereNothingLimits) {
  EXPECT_EQ(cpus(), Cpus());
  write("proc/self/cgroup", "0::/job\n");
  EXPECT_EQ(cpus(), Cpus());
  write("sys/fs/cgroup/job/cpu.max", "max 100000\n");
  EXPECT_EQ(cpus(), Cpus());
}

TEST_F(CpuQuotas, AreThoseOnTheWayToTheRoot) {
  write("proc/self/cgroup", "0::/pod/job\n");
  write("sys/fs/cgroup/pod/job/cpu.max", "800000 100000\n");
  write("sys/fs/cgroup/pod/cpu.max", "400000 100000\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(cpus(), Cpus({8, 4}));
}

TEST_F(CpuQuotas, AreRoundedUp) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/cpu.max", "250000 100000\n");
  EXPECT_EQ(cpus(), Cpus{3});
  write("sys/fs/cgroup/cpu.max", "25000 50000\n");
  EXPECT_EQ(cpus(), Cpus{1});
}

// In a container the path may be that of the host, where nothing is to be seen.
TEST_F(CpuQuotas, KnowControlGroupsOfVersion1) {
  write("proc/self/cgroup", "11:cpuset:/x\n4:cpu,cpuacct:/docker/c2\n0::/\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpus(), Cpus{4});
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cpus(), Cpus());
}

TEST_F(CpuQuotas, TellTheirGroups) {
  write("proc/self/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/cpu.max", "100000 100000\n");
  write("sys/fs/cgroup/b/cpu.max", "100000 100000\n");
  const auto quotas = cpu_quotas(root_.path());
  EXPECT_EQ(quotas, cpu_quotas(root_.path()));
  write("proc/self/cgroup", "0::/b\n");
  EXPECT_NE(quotas, cpu_quotas(root_.path()));
}

}  // namespace
}  // namespace millrace::test
