#pragma once
#include <functional>

#include "millrace/comm/world.h"

// How the ranks of a launched command start, and how all of them end.
namespace millrace {

// Joins the other ranks and runs a command with them. An error is printed once and becomes the exit code of all: one
// that all agree on by rank 0, after which they end in order; any other by the rank that has it, which then aborts the
// rest, since they wait for it.
int run_ranks(const std::function<int(World&)>& command);

// How many seconds a rank waits for all ranks to start: MILLRACE_JOIN_SECONDS, else `usual`. Not a setting, since none
// has been read by then.
double join_seconds(double usual);

}  // namespace millrace
