#include "mpi_transfer.h"

#include <utility>
#include <vector>

#include "millrace/comm/backoff.h"
#include "millrace/core/error.h"
#include "mpi_group.h"
#include "mpi_requests.h"

namespace millrace {
namespace {

bool mpi_has_ended() {
  const std::lock_guard turn(mpi_turn());
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

// NOTE [Half a message] A receive whose message has begun to arrive is not cancelled: it ends when the sender has sent
// the rest. That sender may be the rank that hangs, and the error that says so must not wait for it. The rest may still
// come, so the memory stays for good.
bool give_up(MPI_Request& request) {
  constexpr double limit_seconds = 2;
  const std::lock_guard turn(mpi_turn());
  if (mpi_is_given_up()) return false;
  int done = 0;
  if (MPI_Cancel(&request) != MPI_SUCCESS) return false;
  for (Backoff backoff; !done && backoff.seconds() < limit_seconds; backoff.pause())
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return false;
  return done != 0;
}

void keep_for_good(std::shared_ptr<const void> owner) {
  static auto& kept = *new std::vector<std::shared_ptr<const void>>;
  const std::lock_guard turn(mpi_turn());
  kept.push_back(std::move(owner));
}

}  // namespace

MpiReceive::MpiReceive(MPI_Comm comm, int from, int tag, std::span<std::byte> into, std::shared_ptr<const void> owner)
    : owner_(std::move(owner)) {
  ensure(into.size() <= message_bytes, "message buffer too large");
  call_mpi(
      [&] { return MPI_Recv_init(into.data(), static_cast<int>(into.size()), MPI_BYTE, from, tag, comm, &request_); });
}

MpiReceive::~MpiReceive() {
  if (mpi_has_ended()) return;
  if (pending_ && !give_up(request_)) keep_for_good(owner_);
  const std::lock_guard turn(mpi_turn());
  MPI_Request_free(&request_);
}

void MpiReceive::start(std::size_t) {
  ensure(!pending_, "receive started twice");
  call_mpi([&] { return MPI_Start(&request_); });
  pending_ = true;
}

bool MpiReceive::done() {
  if (!pending_) return true;
  int done = 0, count = 0;
  MPI_Status status;
  call_mpi([&] { return MPI_Test(&request_, &done, &status); });
  if (!done) return false;
  call_mpi([&] { return MPI_Get_count(&status, MPI_BYTE, &count); });
  bytes_ = static_cast<std::size_t>(count);
  pending_ = false;
  return true;
}

void MpiReceive::cancel() {
  if (!pending_) return;
  if (!give_up(request_)) fail(Exit::suspect_node, "a message that began to arrive does not end");
  pending_ = false;
  bytes_ = 0;
}

MpiSend::~MpiSend() {
  if (request_ == MPI_REQUEST_NULL || mpi_has_ended()) return;
  const std::lock_guard turn(mpi_turn());
  MPI_Request_free(&request_);
}

void MpiSend::start(std::size_t bytes) {
  ensure(request_ == MPI_REQUEST_NULL, "send started twice");
  ensure(bytes <= from_.size() && bytes <= message_bytes, "message longer than its memory");
  call_mpi([&] { return MPI_Isend(from_.data(), static_cast<int>(bytes), MPI_BYTE, to_, tag_, comm_, &request_); });
}

bool MpiSend::done() {
  int done = 0;
  call_mpi([&] { return MPI_Test(&request_, &done, MPI_STATUS_IGNORE); });
  return done != 0;
}

}  // namespace millrace
