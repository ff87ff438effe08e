#include "run/threads.h"

#include <fmt/ranges.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <map>
#include <memory>
#include <sstream>

namespace millrace {

std::vector<int> allowed_cpus() {
  // The kernel answers EINVAL as long as the set is smaller than its own.
  constexpr int most = 1 << 20;
  for (int count = 1024; count <= most; count *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(count), [](cpu_set_t* s) { CPU_FREE(s); });
    const std::size_t bytes = CPU_ALLOC_SIZE(count);
    CPU_ZERO_S(bytes, set.get());
    if (sched_getaffinity(0, bytes, set.get()) == 0) {
      std::vector<int> cpus;
      for (int cpu = 0; cpu < count; ++cpu)
        if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(cpu);
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  return {};
}

int plan_threads(const std::vector<std::vector<int>>& masks, std::size_t self) {
  std::map<int, int> users;  // of each CPU
  for (const auto& mask : masks)
    for (const int cpu : mask) ++users[cpu];
  double share = 0;
  for (const int cpu : masks.at(self)) share += 1.0 / users.at(cpu);
  constexpr double rounding = 1e-6;  // 12 CPUs of 6 ranks are 2 for each, whatever twelve sixths add up to
  return std::max(1, static_cast<int>(std::floor(share + rounding)));
}

int count_threads(const World& world, const config::Auto<int>& wanted) {
  const auto texts = world.group().all_gather_strings(fmt::format("{}", fmt::join(allowed_cpus(), " ")));
  std::vector<std::vector<int>> masks;
  std::size_t self = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (world.hosts()[rank] != world.host()) continue;
    if (rank == world.rank()) self = masks.size();
    std::istringstream text(texts[rank]);
    auto& mask = masks.emplace_back();
    for (int cpu; text >> cpu;) mask.push_back(cpu);
  }
  return wanted.value_or(plan_threads(masks, self));
}

}  // namespace millrace
