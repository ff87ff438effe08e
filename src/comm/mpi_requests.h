#pragma once
#include <mpi.h>

#include <source_location>
#include <span>
#include <string_view>

namespace millrace {

// Turns what MPI returns into Error(suspect): with errors returned, a failure means that another rank or the network
// broke.
void check_mpi(int code, std::source_location where = std::source_location::current());

// Waits until all are complete; Error(suspect) naming `what` and `rank` after `limit_seconds`.
void wait_all(std::span<MPI_Request> requests, double limit_seconds, std::string_view what, int rank);

}  // namespace millrace
