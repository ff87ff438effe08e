#include "launch/threads.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>
#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <sstream>

#include "millrace/nn/device.h"

namespace millrace {

namespace {

// A set of CPUs below `count`, empty at first.
struct CpuSet {
  explicit CpuSet(int count) : set(CPU_ALLOC(count), [](cpu_set_t* s) { CPU_FREE(s); }), bytes(CPU_ALLOC_SIZE(count)) {
    CPU_ZERO_S(bytes, set.get());
  }
  std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set;
  std::size_t bytes;
};

// The thread that has loaded OpenMP is bound to the first place.
void leave_place() {
  std::vector<int> cpus;
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> ids(omp_get_place_num_procs(place));
    omp_get_place_proc_ids(place, ids.data());
    cpus.insert(cpus.end(), ids.begin(), ids.end());
  }
  if (cpus.empty()) return;
  const CpuSet all(std::ranges::max(cpus) + 1);
  for (const int cpu : cpus) CPU_SET_S(cpu, all.bytes, all.set.get());
  sched_setaffinity(0, all.bytes, all.set.get());
}

}  // namespace

void begin_without_openmp_settings(char** argv) {
  const bool binds = omp_get_proc_bind() != omp_proc_bind_false;
  const bool may_be_fewer = omp_get_dynamic() || omp_get_thread_limit() != std::numeric_limits<int>::max();
  if (!binds && !may_be_fewer) return;
  bool is_set = false;
  for (const char* name : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "OMP_DYNAMIC", "OMP_THREAD_LIMIT"}) {
    is_set |= std::getenv(name) != nullptr;
    unsetenv(name);
  }
  if (!is_set) return;  // it has begun anew already
  if (binds) leave_place();
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error && !program.filename().string().starts_with("ld-")) {  // not the loader, which was given the program
    execv(program.c_str(), argv);
    execv("/proc/self/exe", argv);  // where the file has been replaced
  }
  std::fputs("millrace: OpenMP keeps its OMP_* settings in this process, which may be slow or hang: unset them\n",
             stderr);
}

std::vector<int> allowed_cpus() {
  // The kernel answers EINVAL as long as the set is smaller than its own.
  constexpr int most = 1 << 20;
  for (int count = 1024; count <= most; count *= 2) {
    const CpuSet mask(count);
    if (sched_getaffinity(0, mask.bytes, mask.set.get()) == 0) {
      std::vector<int> cpus;
      for (int cpu = 0; cpu < count; ++cpu)
        if (CPU_ISSET_S(cpu, mask.bytes, mask.set.get())) cpus.push_back(cpu);
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  return {};
}

int plan_threads(const std::vector<std::vector<int>>& masks, const std::vector<std::vector<CpuQuota>>& quotas,
                 std::size_t self) {
  std::map<int, int> users;  // of each CPU
  for (const auto& mask : masks)
    for (const int cpu : mask) ++users[cpu];
  double share = 0;
  for (const int cpu : masks.at(self)) share += 1.0 / users.at(cpu);
  std::map<std::uint64_t, int> members;  // of each group
  for (const auto& own : quotas)
    for (const auto& quota : own) ++members[quota.group];
  for (const auto& [group, cpus] : quotas.at(self)) share = std::min(share, 1.0 * cpus / members.at(group));
  constexpr double rounding = 1e-6;  // 12 CPUs of 6 ranks are 2 for each, whatever twelve sixths add up to
  return std::max(1, static_cast<int>(std::floor(share + rounding)));
}

int count_threads(const World& world, const config::Auto<int>& wanted) {
  const auto cpus = world.group().all_gather_strings(fmt::format("{}", fmt::join(allowed_cpus(), " ")));
  std::string own;
  for (const auto& [group, count] : cpu_quotas()) own += fmt::format("{} {} ", group, count);
  const auto groups = world.group().all_gather_strings(own);
  std::vector<std::vector<int>> masks;
  std::vector<std::vector<CpuQuota>> quotas;
  std::size_t self = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (world.hosts()[rank] != world.host()) continue;
    if (rank == world.rank()) self = masks.size();
    std::istringstream mask(cpus[rank]), quota(groups[rank]);
    masks.emplace_back(std::istream_iterator<int>(mask), std::istream_iterator<int>());
    quotas.emplace_back();
    for (CpuQuota one{}; quota >> one.group >> one.cpus;) quotas.back().push_back(one);
  }
  return wanted.value_or(plan_threads(masks, quotas, self));
}

void use_threads(int threads) {
  if (threads > 1) keep_mkl_exact();
  at::set_num_threads(threads);
}

}  // namespace millrace
