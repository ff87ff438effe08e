#include "mpi_collectives.h"

#include <algorithm>

#include "millrace/core/error.h"
#include "mpi_requests.h"

namespace millrace {
namespace {

constexpr std::size_t chunk_floats = 128 * 1024;  // 512 KiB: 256 KiB to 1 MiB are equally fast
constexpr int tag = 1;

// What lies in `data` of the piece that begins at `begin`: the last parts may be short or empty.
template <class T>
std::span<T> piece(std::span<T> data, std::size_t begin, std::size_t count) {
  begin = std::min(begin, data.size());
  return data.subspan(begin, std::min(count, data.size() - begin));
}

template <class T>
int bytes_of(std::span<T> data) {
  return static_cast<int>(data.size_bytes());
}

}  // namespace

MpiCollectives::MpiCollectives(Group group) : group_(std::move(group)), mpi_(static_cast<MpiGroup&>(group_.backend())) {
  for (auto& exchange : exchanges_) exchange.received.resize(chunk_floats * size());
}

void MpiCollectives::all_reduce_sum(std::span<float> data) {
  const std::size_t part = (data.size() + size() - 1) / size();
  reduce_parts(data, part, piece(data, rank() * part, part));
  gather_parts(std::as_writable_bytes(data), part * sizeof(float));
}

void MpiCollectives::reduce_scatter_sum(std::span<float> data, std::span<float> own) {
  ensure(data.size() == own.size() * size(), "reduce_scatter: sizes do not match");
  reduce_parts(data, own.size(), own);
}

void MpiCollectives::all_gather(std::span<const std::byte> own, std::span<std::byte> all) {
  ensure(all.size() == own.size() * size(), "all_gather: sizes do not match");
  const auto mine = all.subspan(rank() * own.size(), own.size());
  if (mine.data() != own.data()) std::copy(own.begin(), own.end(), mine.begin());
  gather_parts(all, own.size());
}

// own := sum over ranks of the piece [rank * part, ...) of `data`.
void MpiCollectives::reduce_parts(std::span<float> data, std::size_t part, std::span<float> own) {
  const std::size_t chunks = (part + chunk_floats - 1) / chunk_floats;
  if (chunks == 0) return;
  start(exchanges_[0], data, part, 0);
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    if (chunk + 1 < chunks) start(exchanges_[(chunk + 1) % 2], data, part, chunk + 1);
    finish(exchanges_[chunk % 2], own, piece(data, rank() * part, part), chunk);
  }
}

void MpiCollectives::start(Exchange& exchange, std::span<float> data, std::size_t part, std::size_t chunk) {
  const auto chunk_of = [&](int owner) {
    return piece(piece(data, owner * part, part), chunk * chunk_floats, chunk_floats);
  };
  exchange.requests.clear();
  for (int step = 1; step < size(); ++step) {
    const int from = (rank() - step + size()) % size(), to = (rank() + step) % size();
    const std::span<float> into(exchange.received.data() + from * chunk_floats, chunk_of(rank()).size());
    check_mpi(
        MPI_Irecv(into.data(), bytes_of(into), MPI_BYTE, from, tag, mpi_.comm(), &exchange.requests.emplace_back()));
    const auto theirs = chunk_of(to);
    check_mpi(
        MPI_Isend(theirs.data(), bytes_of(theirs), MPI_BYTE, to, tag, mpi_.comm(), &exchange.requests.emplace_back()));
  }
}

void MpiCollectives::finish(Exchange& exchange, std::span<float> own, std::span<const float> mine, std::size_t chunk) {
  wait_all(exchange.requests, mpi_.limit_seconds(), "a reduction of gradients", rank());
  const auto my_chunk = piece(mine, chunk * chunk_floats, chunk_floats);
  const auto sum = piece(own, chunk * chunk_floats, chunk_floats);
  // My own contribution takes its place among the others before `sum`, which may be the same memory, is written.
  std::copy(my_chunk.begin(), my_chunk.end(), exchange.received.begin() + rank() * chunk_floats);
  std::copy_n(exchange.received.begin(), sum.size(), sum.begin());
  for (int from = 1; from < size(); ++from) {
    const float* received = exchange.received.data() + from * chunk_floats;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += received[i];
  }
}

// Piece [r * part, ...) of `all` goes from rank r to all others.
void MpiCollectives::gather_parts(std::span<std::byte> all, std::size_t part) {
  for (std::size_t begin = 0; begin < part; begin += message_bytes) {
    const auto piece_of = [&](int owner) { return piece(piece(all, owner * part, part), begin, message_bytes); };
    std::vector<MPI_Request> requests;
    for (int step = 1; step < size(); ++step) {
      const int from = (rank() - step + size()) % size(), to = (rank() + step) % size();
      const auto theirs = piece_of(from), mine = piece_of(rank());
      check_mpi(MPI_Irecv(theirs.data(), bytes_of(theirs), MPI_BYTE, from, tag, mpi_.comm(), &requests.emplace_back()));
      check_mpi(MPI_Isend(mine.data(), bytes_of(mine), MPI_BYTE, to, tag, mpi_.comm(), &requests.emplace_back()));
    }
    wait_all(requests, mpi_.limit_seconds(), "a gather of parameters", rank());
  }
}

}  // namespace millrace
