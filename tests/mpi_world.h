#pragma once
#include <algorithm>

#include "millrace/comm/world.h"

// The world of a test program that runs with RANKS (tests/mpi_main.cpp makes it).
const millrace::World& test_world();

inline int ranks_on_this_node() {
  return static_cast<int>(std::ranges::count(test_world().hosts(), test_world().host()));
}
