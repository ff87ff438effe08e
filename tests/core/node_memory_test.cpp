#include <gtest/gtest.h>

#include <limits>

#include "core/temp_dir.h"
#include "millrace/core/node_memory.h"

namespace millrace::test {
namespace {

// A root with files as Linux shows them.
class NodeMemory : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    root_.write(path, text);
  }
  std::uint64_t bytes() const { return node_memory_bytes(root_.path()); }

  TempDir root_;
};

TEST_F(NodeMemory, IsWhatTheKernelHas) {
  EXPECT_EQ(bytes(), std::numeric_limits<std::uint64_t>::max());
  write("proc/meminfo", "MemTotal:       65862936 kB\nMemFree:         1024 kB\n");
  EXPECT_EQ(bytes(), 65862936ull * 1024);
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(bytes(), 65862936ull * 1024);
}

// Slurm limits the job's group, not the step's in which the process is.
TEST_F(NodeMemory, IsTheLeastLimitOnTheWayToTheRoot) {
  write("proc/meminfo", "MemTotal: 1000 kB\n");
  write("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
  write("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
  write("sys/fs/cgroup/slurm/job_7/memory.max", "300000\n");
  write("sys/fs/cgroup/slurm/memory.max", "700000\n");
  EXPECT_EQ(bytes(), 300000u);
  write("sys/fs/cgroup/slurm/job_7/memory.max", "9000000\n");
  EXPECT_EQ(bytes(), 700000u);
}

TEST_F(NodeMemory, KnowsControlGroupsOfVersion1) {
  write("proc/meminfo", "MemTotal: 1000 kB\n");
  write("proc/self/cgroup", "11:cpuset:/job_7\n4:memory:/slurm/job_7\n1:name=systemd:/x\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", "400000\n");
  write("sys/fs/cgroup/memory/job_7/memory.limit_in_bytes", "1\n");  // of another controller's path
  EXPECT_EQ(bytes(), 400000u);
}

// In a container the path may be that of the host, where nothing is to be seen.
TEST_F(NodeMemory, FindsTheLimitOfAContainer) {
  write("proc/meminfo", "MemTotal: 1000 kB\n");
  write("proc/self/cgroup", "0::/kubepods/pod1/c2\n");
  write("sys/fs/cgroup/memory.max", "500000\n");
  EXPECT_EQ(bytes(), 500000u);
}

TEST_F(NodeMemory, IsFreeWhereOnlyCachedFilesAre) {
  const auto free = [&] { return free_node_memory_bytes(root_.path()); };
  write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 600 kB\n");
  EXPECT_EQ(free(), 600u * 1024);
  write("proc/self/cgroup", "0::/slurm/job_7\n");
  write("sys/fs/cgroup/slurm/job_7/memory.max", "max\n");
  write("sys/fs/cgroup/slurm/memory.max", "500000\n");
  write("sys/fs/cgroup/slurm/memory.current", "400000\n");
  write("sys/fs/cgroup/slurm/memory.stat", "anon 100000\ninactive_file 120000\nactive_file 30000\n");
  EXPECT_EQ(free(), 250000u);
  write("sys/fs/cgroup/slurm/memory.current", "900000\n");
  EXPECT_EQ(free(), 0u);
}

TEST_F(NodeMemory, IsFreeByTheFilesOfTheFirstVersionToo) {
  write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n");
  write("proc/self/cgroup", "4:memory:/job\n3:cpu:/job\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "300000\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "250000\n");
  write("sys/fs/cgroup/memory/job/memory.stat", "cache 5\ntotal_inactive_file 40000\ntotal_active_file 10000\n");
  EXPECT_EQ(free_node_memory_bytes(root_.path()), 100000u);
}

}  // namespace
}  // namespace millrace::test
