#pragma once
#include <vector>

#include "millrace/comm/world.h"
#include "millrace/config/config.h"
#include "millrace/core/cpu_quota.h"

namespace millrace {

// Restarts the program without OpenMP's own settings, if any is set: the program and its launcher decide how many
// threads compute, and where. These settings would put all of a rank's threads on one CPU (OMP_PROC_BIND, OMP_PLACES,
// GOMP_CPU_AFFINITY), or give it fewer than agreed (OMP_DYNAMIC, OMP_THREAD_LIMIT), for which oneDNN's threads then
// wait without end. As they are read when the library is loaded, the program begins anew, on all CPUs of the places.
// `argv`: main's.
void begin_without_openmp_settings(char** argv);

// The CPUs that this process may run on, in order; any number of them.
std::vector<int> allowed_cpus();

// The number of threads for the rank that may use `masks[self]`; `masks` and `quotas` have an entry for each rank of
// its node. Every CPU is divided equally among the ranks that may use it: so ranks bound to CPUs of their own use all
// of these, and ranks that may use the same CPUs divide them. Ranks that share a quota divide that, too. At least 1.
int plan_threads(const std::vector<std::vector<int>>& masks, const std::vector<std::vector<CpuQuota>>& quotas,
                 std::size_t self);

// plan_threads() for the ranks as they were started, or `wanted` if given. Collective.
int count_threads(const World& world, const config::Auto<int>& wanted);

// Makes the process compute with so many threads, adding up in one order. Call before the first arithmetic.
void use_threads(int threads);

}  // namespace millrace
