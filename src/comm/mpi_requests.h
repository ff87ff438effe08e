#pragma once
#include <mpi.h>

#include <span>
#include <string_view>

namespace millrace {

// Turns what MPI returns into Error(timeout): with errors returned, a failure means that another rank or the network
// broke.
void check_mpi(int code, const char* file = __builtin_FILE(), int line = __builtin_LINE());

// Waits until all are complete; Error(timeout) naming `what` (a literal) and `rank` after `limit_seconds`.
void wait_all(std::span<MPI_Request> requests, double limit_seconds, const char* what, int rank);

}  // namespace millrace
