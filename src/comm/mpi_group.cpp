#include "mpi_group.h"

#include <algorithm>

#include "mpi_requests.h"
#include "mpi_transfer.h"

namespace millrace {
namespace {

MPI_Op operation(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return MPI_SUM;
    case Reduction::max:
      return MPI_MAX;
    case Reduction::min:
      return MPI_MIN;
  }
  throw Error(Exit::bug, "unknown reduction");
}

// The texts of all ranks, one behind the other.
struct Texts {
  explicit Texts(const std::vector<int>& lengths) : lengths(lengths), offsets(lengths.size()) {
    std::int64_t total = 0;
    for (std::size_t rank = 0; rank < lengths.size(); ++rank) {
      offsets[rank] = static_cast<int>(total);
      total += lengths[rank];
      ensure(total <= static_cast<std::int64_t>(message_bytes), "texts too long to be gathered");
    }
    all.resize(static_cast<std::size_t>(total));
  }

  std::vector<std::string> split() const {
    std::vector<std::string> texts;
    for (std::size_t rank = 0; rank < lengths.size(); ++rank) texts.push_back(all.substr(offsets[rank], lengths[rank]));
    return texts;
  }

  std::vector<int> lengths, offsets;
  std::string all;
};

int length_of(const std::string& text) {
  ensure(text.size() <= message_bytes, "text too long to be gathered");
  return static_cast<int>(text.size());
}

}  // namespace

MpiGroup::MpiGroup(MPI_Comm comm, std::shared_ptr<double> limit_seconds)
    : comm_(comm), limit_seconds_(std::move(limit_seconds)) {
  call_mpi([&] { return MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN); });
  call_mpi([&] { return MPI_Comm_rank(comm_, &rank_); });
  call_mpi([&] { return MPI_Comm_size(comm_, &size_); });
}

void MpiGroup::wait(MPI_Request request, const char* what) const {
  wait_all(std::span(&request, 1), limit_seconds(), what, rank_);
}

// A communicator is made without a time limit, so all ranks are waited for before.
std::shared_ptr<GroupBackend> MpiGroup::split(int color, int key) const {
  barrier();
  MPI_Comm part;
  call_mpi([&] { return MPI_Comm_split(comm_, color, key, &part); });
  return std::make_shared<MpiGroup>(part, limit_seconds_);
}

std::shared_ptr<GroupBackend> MpiGroup::duplicate() const {
  barrier();
  MPI_Comm copy;
  call_mpi([&] { return MPI_Comm_dup(comm_, &copy); });
  return std::make_shared<MpiGroup>(copy, limit_seconds_);
}

void MpiGroup::barrier() const {
  MPI_Request request;
  call_mpi([&] { return MPI_Ibarrier(comm_, &request); });
  wait(request, "barrier");
}

void MpiGroup::broadcast(std::span<std::byte> bytes, int root) const {
  for (std::size_t begin = 0; begin < bytes.size(); begin += message_bytes) {
    const auto part = bytes.subspan(begin, std::min(message_bytes, bytes.size() - begin));
    MPI_Request request;
    call_mpi([&] { return MPI_Ibcast(part.data(), static_cast<int>(part.size()), MPI_BYTE, root, comm_, &request); });
    wait(request, "broadcast");
  }
}

void MpiGroup::all_reduce(void* values, std::size_t count, MPI_Datatype type, Reduction reduction) const {
  ensure(count <= message_bytes, "too many values for a control message");
  MPI_Request request;
  call_mpi([&] {
    return MPI_Iallreduce(MPI_IN_PLACE, values, static_cast<int>(count), type, operation(reduction), comm_, &request);
  });
  wait(request, "all_reduce");
}

void MpiGroup::all_reduce(std::span<double> values, Reduction reduction) const {
  all_reduce(values.data(), values.size(), MPI_DOUBLE, reduction);
  // MPI recommends that a sum has the same bits on all ranks, but does not promise it.
  if (reduction == Reduction::sum) broadcast(std::as_writable_bytes(values), 0);
}

void MpiGroup::all_reduce(std::span<std::int64_t> values, Reduction reduction) const {
  all_reduce(values.data(), values.size(), MPI_INT64_T, reduction);
}

std::vector<std::string> MpiGroup::gather_strings(const std::string& mine, int root) const {
  const int length = length_of(mine);
  std::vector<int> lengths(rank_ == root ? size_ : 0);
  MPI_Request request;
  call_mpi([&] { return MPI_Igather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, root, comm_, &request); });
  wait(request, "gather");
  Texts texts(lengths);
  call_mpi([&] {
    return MPI_Igatherv(mine.data(), length, MPI_CHAR, texts.all.data(), texts.lengths.data(), texts.offsets.data(),
                        MPI_CHAR, root, comm_, &request);
  });
  wait(request, "gather");
  return texts.split();
}

std::vector<std::string> MpiGroup::all_gather_strings(const std::string& mine) const {
  const int length = length_of(mine);
  std::vector<int> lengths(size_);
  MPI_Request request;
  call_mpi([&] { return MPI_Iallgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm_, &request); });
  wait(request, "all_gather");
  Texts texts(lengths);
  call_mpi([&] {
    return MPI_Iallgatherv(mine.data(), length, MPI_CHAR, texts.all.data(), texts.lengths.data(), texts.offsets.data(),
                           MPI_CHAR, comm_, &request);
  });
  wait(request, "all_gather");
  return texts.split();
}

Transfer MpiGroup::receiver(int from, int tag, std::span<std::byte> into, std::shared_ptr<const void> owner) const {
  return Transfer(std::make_unique<MpiReceive>(comm_, from, tag, into, std::move(owner)));
}

Transfer MpiGroup::sender(int to, int tag, std::span<const std::byte> from) const {
  return Transfer(std::make_unique<MpiSend>(comm_, to, tag, from));
}

}  // namespace millrace
