#pragma once
#include <vector>

#include "millrace/comm/world.h"
#include "millrace/config/config.h"

namespace millrace {

// The CPUs that this process may run on, in order; any number of them.
std::vector<int> allowed_cpus();

// Threads for the rank that may use `masks[self]`, of all ranks of its node: every CPU counts for the ranks that may
// use it in equal parts. So ranks that are bound to CPUs of their own use all of these, and ranks that may use the same
// CPUs divide them. At least 1.
int plan_threads(const std::vector<std::vector<int>>& masks, std::size_t self);

// The same for the ranks as they were started, unless so many are `wanted`. Collective.
int count_threads(const World& world, const config::Auto<int>& wanted);

}  // namespace millrace
