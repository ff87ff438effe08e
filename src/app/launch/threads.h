#pragma once
#include <vector>

#include "millrace/comm/world.h"
#include "millrace/config/config.h"
#include "millrace/core/cpu_quota.h"

namespace millrace {

// How many threads compute, and where, is the program's and its launcher's. OpenMP's own settings would put all of a
// rank's threads on one CPU (OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY), or give it fewer than agreed
// (OMP_DYNAMIC, OMP_THREAD_LIMIT), which oneDNN's threads then wait for without end. They are read when the library is
// loaded: where one of them is set, the program begins anew without it, on all CPUs of the places. `argv`: main's.
void begin_without_openmp_settings(char** argv);

// The CPUs that this process may run on, in order; any number of them.
std::vector<int> allowed_cpus();

// Threads for the rank that may use `masks[self]`, of all ranks of its node: every CPU counts for the ranks that may
// use it in equal parts. So ranks that are bound to CPUs of their own use all of these, and ranks that may use the same
// CPUs divide them. As do ranks that share a quota: `quotas` has those of every rank. At least 1.
int plan_threads(const std::vector<std::vector<int>>& masks, const std::vector<std::vector<CpuQuota>>& quotas,
                 std::size_t self);

// The same for the ranks as they were started, unless so many are `wanted`. Collective.
int count_threads(const World& world, const config::Auto<int>& wanted);

// The process's arithmetic by so many threads, with sums in one order. Before the first arithmetic.
void use_threads(int threads);

}  // namespace millrace
