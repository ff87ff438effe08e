// MPI's calls that the program makes, before the library's: MPI has a second name for each, PMPI_, for just this.
#include <mpi.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <span>
#include <string_view>

#include "faults.h"
#include "millrace/core/phase.h"

namespace {

using namespace millrace::inject;

// The program has promised MPI that one thread at a time calls it (MPI_THREAD_SERIALIZED). This build holds it to that.
class Turn {
 public:
  Turn() {
    if (inside_.fetch_add(1) == 0) return;
    std::fputs("millrace_inject: two threads are in MPI at once\n", stderr);
    std::abort();
  }
  ~Turn() { --inside_; }

 private:
  static inline std::atomic<int> inside_ = 0;
};

template <class Real>
int guarded(Call call, Real real) {
  const Turn turn;
  return at(call, {}).error ? MPI_ERR_OTHER : real();
}

std::span<float> arriving;  // where the last receive puts what it gets, if that is numbers

// Behind a wait, if its name tells that it was for the parts of a tensor (comm/mpi_collectives.cpp).
void spoil_gathered() {
  const char* const awaited = millrace::phase::awaited;
  if (!awaited || std::string_view(awaited) != "an MPI all_gather" || !at(Call::mpi_gather, {}).flip) return;
  for (float& number : arriving) number = -number;
}

}  // namespace

extern "C" {

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  return guarded(Call::mpi_init, [&] { return PMPI_Init_thread(argc, argv, required, provided); });
}

int MPI_Finalize() {
  return guarded(Call::mpi_finalize, [&] { return PMPI_Finalize(); });
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  return guarded(Call::mpi_send, [&] { return PMPI_Isend(data, count, type, to, tag, comm, request); });
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  arriving = {static_cast<float*>(data), static_cast<std::size_t>(count) / sizeof(float)};
  return guarded(Call::mpi_receive, [&] { return PMPI_Irecv(data, count, type, from, tag, comm, request); });
}

int MPI_Start(MPI_Request* request) {
  return guarded(Call::mpi_receive, [&] { return PMPI_Start(request); });
}

int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  return guarded(Call::mpi_test, [&] { return PMPI_Test(request, done, status); });
}

int MPI_Testall(int count, MPI_Request* requests, int* done, MPI_Status* statuses) {
  const int code = guarded(Call::mpi_test, [&] { return PMPI_Testall(count, requests, done, statuses); });
  if (code == MPI_SUCCESS && *done) spoil_gathered();
  return code;
}

// Only sums of doubles can be poisoned, so only they count where a NaN is asked for.
int MPI_Iallreduce(const void* data, void* result, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request* request) {
  const Turn turn;
  const bool is_sum = type == MPI_DOUBLE && op == MPI_SUM && data == MPI_IN_PLACE && count > 0;
  const Verdict verdict = at(is_sum ? Call::mpi_reduce : Call::mpi_collective, {});
  if (verdict.error) return MPI_ERR_OTHER;
  if (verdict.poison) *static_cast<double*>(result) = std::numeric_limits<double>::quiet_NaN();
  return PMPI_Iallreduce(data, result, count, type, op, comm, request);
}

int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  return guarded(Call::mpi_collective, [&] { return PMPI_Ibarrier(comm, request); });
}

int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request) {
  return guarded(Call::mpi_collective, [&] { return PMPI_Ibcast(data, count, type, root, comm, request); });
}

int MPI_Igather(const void* data, int count, MPI_Datatype type, void* all, int each, MPI_Datatype of, int root,
                MPI_Comm comm, MPI_Request* request) {
  return guarded(Call::mpi_collective,
                 [&] { return PMPI_Igather(data, count, type, all, each, of, root, comm, request); });
}

int MPI_Igatherv(const void* data, int count, MPI_Datatype type, void* all, const int counts[], const int offsets[],
                 MPI_Datatype of, int root, MPI_Comm comm, MPI_Request* request) {
  return guarded(Call::mpi_collective,
                 [&] { return PMPI_Igatherv(data, count, type, all, counts, offsets, of, root, comm, request); });
}

int MPI_Iallgather(const void* data, int count, MPI_Datatype type, void* all, int each, MPI_Datatype of, MPI_Comm comm,
                   MPI_Request* request) {
  return guarded(Call::mpi_collective,
                 [&] { return PMPI_Iallgather(data, count, type, all, each, of, comm, request); });
}

int MPI_Iallgatherv(const void* data, int count, MPI_Datatype type, void* all, const int counts[], const int offsets[],
                    MPI_Datatype of, MPI_Comm comm, MPI_Request* request) {
  return guarded(Call::mpi_collective,
                 [&] { return PMPI_Iallgatherv(data, count, type, all, counts, offsets, of, comm, request); });
}
}
