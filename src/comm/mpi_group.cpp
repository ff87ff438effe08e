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
  }
  throw bug("unknown reduction");
}

// Of the texts of all ranks together, in one exchange: far below what MPI's counts reach.
constexpr std::int64_t gathered_bytes = std::int64_t{1} << 26;

// Pieces of every rank's text, one behind the other.
struct Pieces {
  Pieces(const std::vector<std::int64_t>& text_bytes, std::int64_t begin, std::int64_t at_once) {
    for (const auto whole : text_bytes) {
      offsets.push_back(offsets.empty() ? 0 : offsets.back() + lengths.back());
      lengths.push_back(static_cast<int>(std::clamp<std::int64_t>(whole - begin, 0, at_once)));
    }
  }

  std::vector<int> lengths, offsets;
  std::string all;  // where they arrive
};

// The same share of every text at a time. `exchange` starts to send this rank's and, where they arrive, to receive all.
template <class Exchange>
std::vector<std::string> gather_in_pieces(const MpiGroup& group, const std::string& mine, bool arrive_here,
                                          const Exchange& exchange) {
  const auto rank = static_cast<std::size_t>(group.rank());
  std::vector<std::int64_t> text_bytes(static_cast<std::size_t>(group.size()));
  text_bytes[rank] = static_cast<std::int64_t>(mine.size());
  group.all_reduce(text_bytes, Reduction::sum);
  const auto at_once = std::max<std::int64_t>(1, gathered_bytes / group.size());
  std::vector<std::string> texts(arrive_here ? text_bytes.size() : 0);
  for (std::int64_t begin = 0; begin < std::ranges::max(text_bytes); begin += at_once) {
    Pieces pieces(text_bytes, begin, at_once);
    if (arrive_here)
      pieces.all.resize(static_cast<std::size_t>(pieces.offsets.back()) +
                        static_cast<std::size_t>(pieces.lengths.back()));
    MPI_Request request;
    const auto* const piece = mine.data() + std::min(begin, text_bytes[rank]);
    call_mpi([&] { return exchange(piece, pieces.lengths[rank], pieces, &request); });
    group.wait(request, "gather");
    for (std::size_t r = 0; r < texts.size(); ++r)
      texts[r].append(pieces.all, static_cast<std::size_t>(pieces.offsets[r]),
                      static_cast<std::size_t>(pieces.lengths[r]));
  }
  return texts;
}

}  // namespace

MpiGroup::MpiGroup(MPI_Comm comm, std::shared_ptr<double> limit_seconds)
    : comm_(comm), limit_seconds_(std::move(limit_seconds)) {
  call_mpi([&] { return MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN); });
  call_mpi([&] { return MPI_Comm_rank(comm_, &rank_); });
  call_mpi([&] { return MPI_Comm_size(comm_, &size_); });
}

void MpiGroup::wait(MPI_Request request, const char* what) const {
  wait_all(std::span(&request, 1), limit_seconds(), what);
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
  wait_barrier(request, limit_seconds(), "barrier");
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

std::vector<std::string> MpiGroup::gather_strings(const std::string& mine) const {
  const auto exchange = [&](const char* piece, int bytes, Pieces& pieces, MPI_Request* request) {
    return MPI_Igatherv(piece, bytes, MPI_CHAR, pieces.all.data(), pieces.lengths.data(), pieces.offsets.data(),
                        MPI_CHAR, 0, comm_, request);
  };
  return gather_in_pieces(*this, mine, rank_ == 0, exchange);
}

std::vector<std::string> MpiGroup::all_gather_strings(const std::string& mine) const {
  const auto exchange = [&](const char* piece, int bytes, Pieces& pieces, MPI_Request* request) {
    return MPI_Iallgatherv(piece, bytes, MPI_CHAR, pieces.all.data(), pieces.lengths.data(), pieces.offsets.data(),
                           MPI_CHAR, comm_, request);
  };
  return gather_in_pieces(*this, mine, true, exchange);
}

Transfer MpiGroup::receiver(int from, int tag, std::span<std::byte> into, std::shared_ptr<const void> owner) const {
  return Transfer(std::make_unique<MpiReceive>(comm_, from, tag, into, std::move(owner)));
}

Transfer MpiGroup::sender(int to, int tag, std::span<const std::byte> from) const {
  return Transfer(std::make_unique<MpiSend>(comm_, to, tag, from));
}

}  // namespace millrace
