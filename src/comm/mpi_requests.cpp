#include "mpi_requests.h"

#include <string>

#include "millrace/core/error.h"
#include "wait_for_others.h"

namespace millrace {

std::mutex& mpi_turn() {
  static std::mutex turn;
  return turn;
}

void check_mpi(int code, const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(Exit::timeout, fmt::format("MPI failed at {}:{}: {}", file, line, std::string_view(text, length)),
              "look for the first failing rank in the other logs");
}

void wait_all(std::span<MPI_Request> requests, double limit_seconds, const char* what, int rank) {
  const auto complete = [&] {
    int done = 0;
    call_mpi(
        [&] { return MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE); });
    return done != 0;
  };
  wait_for_others(complete, limit_seconds, what, rank);
}

}  // namespace millrace
