#pragma once
#include "millrace/comm/world.h"

// The world of a test program that runs with RANKS (tests/mpi_main.cpp makes it).
const millrace::World& test_world();
