#pragma once
#include <mpi.h>

#include <mutex>
#include <span>

namespace millrace {

// NOTE [Turns] One thread at a time may be in MPI (MPI_THREAD_SERIALIZED); whoever calls it has the turn. Waits
// for other ranks look, give the turn away, and look again, so that a thread that moves parcels along gets in between.
// The exceptions are the making of groups, which begins when all ranks are there, and giving up a message.
std::mutex& mpi_turn();

// Turns what MPI returns into Error(suspect_node): with errors returned, a failure means that another rank or the
// network broke.
void check_mpi(int code, const char* file = __builtin_FILE(), int line = __builtin_LINE());

// NOTE [Given up] What a wait gave up is still under way, and would arrive in memory that its owner has freed by then.
// So nothing moves MPI in this process from then on: every call fails, and only World::abort is left. A barrier, which
// has no memory, may be given up.
bool mpi_is_given_up();
void check_not_given_up();

// One call of MPI, in turn.
template <class Call>
void call_mpi(Call&& call, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const std::lock_guard turn(mpi_turn());
  check_not_given_up();
  check_mpi(call(), file, line);
}

// Waits until all are complete; Error(suspect_node) naming `what` (a literal) and this rank after `limit_seconds`.
void wait_all(std::span<MPI_Request> requests, double limit_seconds, const char* what);
void wait_barrier(MPI_Request request, double limit_seconds, const char* what);

}  // namespace millrace
