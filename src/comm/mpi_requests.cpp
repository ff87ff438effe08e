#include "mpi_requests.h"

#include <string>

#include "millrace/comm/backoff.h"
#include "millrace/core/error.h"
#include "millrace/core/phase.h"
#include "millrace/core/stopwatch.h"

namespace millrace {

void check_mpi(int code, const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(Exit::timeout, fmt::format("MPI failed at {}:{}: {}", file, line, std::string_view(text, length)),
              "look for the first failing rank in the other logs");
}

namespace {

// What the watchdog and metrics are told of a wait.
struct Waiting {
  explicit Waiting(const char* what) { phase::awaited = what; }
  ~Waiting() {
    phase::awaited = nullptr;
    phase::waited_seconds += since.seconds();
    ++phase::moves;
  }
  const Stopwatch since{};
};

}  // namespace

void wait_all(std::span<MPI_Request> requests, double limit_seconds, const char* what, int rank) {
  const Waiting waiting(what);
  Backoff backoff;
  for (int done = 0;;) {
    check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE));
    if (done) return;
    if (backoff.seconds() > limit_seconds) {
      throw Error(Exit::timeout, fmt::format("rank {} waited {:.0f} s for the others in {}", rank, limit_seconds, what),
                  "another rank hangs or has ended: its log tells where");
    }
    backoff.pause();
  }
}

}  // namespace millrace
