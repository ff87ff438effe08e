#include "mpi_requests.h"

#include <atomic>
#include <vector>

#include "millrace/core/error.h"
#include "wait_for_others.h"

namespace millrace {
namespace {

std::atomic<bool> given_up = false;

// What is behind MPI_ERR_IN_STATUS; any other code as it is.
int code_of_first_failure(int code, std::span<const MPI_Status> statuses) {
  int kind = MPI_SUCCESS;
  if (code != MPI_SUCCESS) MPI_Error_class(code, &kind);
  if (kind != MPI_ERR_IN_STATUS) return code;
  for (const auto& status : statuses)
    if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING) return status.MPI_ERROR;
  return code;
}

bool all_done(std::span<MPI_Request> requests) {
  int done = 0;
  std::vector<MPI_Status> statuses(requests.size());
  call_mpi([&] {
    const int code = MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, statuses.data());
    return code_of_first_failure(code, statuses);
  });
  return done != 0;
}

}  // namespace

std::mutex& mpi_turn() {
  static std::mutex turn;
  return turn;
}

void check_mpi(int code, const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(Exit::suspect_node, fmt::format("MPI failed at {}:{}: {}", file, line, std::string_view(text, length)),
              "look for the first failing rank in the other logs");
}

bool mpi_is_given_up() {
  return given_up;
}

void check_not_given_up() {
  if (!given_up) return;
  throw Error(Exit::suspect_node, "MPI is not called any more, since a wait for other ranks was given up",
              "the log says which wait that was");
}

void wait_all(std::span<MPI_Request> requests, double limit_seconds, const char* what) {
  try {
    wait_for_others([&] { return all_done(requests); }, limit_seconds, what);
  } catch (...) {
    const std::lock_guard turn(mpi_turn());
    given_up = true;
    throw;
  }
}

void wait_barrier(MPI_Request request, double limit_seconds, const char* what) {
  wait_for_others([&] { return all_done(std::span(&request, 1)); }, limit_seconds, what);
}

}  // namespace millrace
