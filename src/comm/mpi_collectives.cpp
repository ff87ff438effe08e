#include "mpi_collectives.h"

#include <algorithm>
#include <cstdint>

#include "bfloat16.h"
#include "millrace/core/error.h"
#include "mpi_requests.h"

namespace millrace {
namespace {

constexpr std::size_t chunk_elements = 128 * 1024;  // 512 KiB of f32: 256 KiB to 1 MiB are equally fast
constexpr int tag = 1;

// What lies in `data` of the piece that begins at `begin`: the last parts may be short or empty.
Buffer piece(Buffer data, std::size_t begin, std::size_t count) {
  begin = std::min(begin, data.count);
  return {data.begin() + begin * bytes_of(data.type), std::min(count, data.count - begin), data.type};
}

int message_size(std::size_t bytes) {
  return static_cast<int>(bytes);
}

void ensure_summable(Buffer data) {
  ensure(data.type != WireType::byte, "collectives: bytes cannot be added");
}

}  // namespace

MpiCollectives::MpiCollectives(Group group)
    : group_(std::move(group)), mpi_(static_cast<MpiGroup&>(group_.backend())) {}

void MpiCollectives::all_reduce_sum(Buffer data) {
  const std::size_t part = (data.count + size() - 1) / size();
  reduce_parts(data, part, piece(data, rank() * part, part));
  gather_parts({data.begin(), data.bytes()}, part * bytes_of(data.type));
}

void MpiCollectives::reduce_scatter_sum(Buffer data, Buffer own) {
  ensure(data.count == own.count * size() && data.type == own.type, "reduce_scatter: sizes do not match");
  reduce_parts(data, own.count, own);
}

void MpiCollectives::all_gather(Buffer own, Buffer all) {
  ensure(all.bytes() == own.bytes() * size(), "all_gather: sizes do not match");
  const Buffer mine = all.part(rank(), size());
  if (mine.data != own.data) std::copy_n(own.begin(), own.bytes(), mine.begin());
  gather_parts({all.begin(), all.bytes()}, own.bytes());
}

// own := sum over ranks of the piece [rank * part, ...) of `data`.
void MpiCollectives::reduce_parts(Buffer data, std::size_t part, Buffer own) {
  ensure_summable(data);
  const std::size_t chunks = (part + chunk_elements - 1) / chunk_elements;
  if (chunks == 0) return;
  start(exchanges_[0], data, part, 0);
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    if (chunk + 1 < chunks) start(exchanges_[(chunk + 1) % 2], data, part, chunk + 1);
    finish(exchanges_[chunk % 2], own, piece(data, rank() * part, part), chunk);
  }
}

void MpiCollectives::start(Exchange& exchange, Buffer data, std::size_t part, std::size_t chunk) {
  const auto chunk_of = [&](int owner) {
    return piece(piece(data, owner * part, part), chunk * chunk_elements, chunk_elements);
  };
  const auto bytes = chunk_of(rank()).bytes();
  if (exchange.received.size() < bytes * size()) exchange.received.resize(bytes * size());
  exchange.requests.clear();
  for (int step = 1; step < size(); ++step) {
    const int from = (rank() - step + size()) % size(), to = (rank() + step) % size();
    call_mpi([&] {
      return MPI_Irecv(exchange.received.data() + from * bytes, message_size(bytes), MPI_BYTE, from, tag, mpi_.comm(),
                       &exchange.requests.emplace_back());
    });
    const auto theirs = chunk_of(to);
    call_mpi([&] {
      return MPI_Isend(theirs.data, message_size(theirs.bytes()), MPI_BYTE, to, tag, mpi_.comm(),
                       &exchange.requests.emplace_back());
    });
  }
}

void MpiCollectives::finish(Exchange& exchange, Buffer own, Buffer mine, std::size_t chunk) {
  wait_all(exchange.requests, mpi_.limit_seconds(), "an MPI reduce_scatter");
  const auto my_chunk = piece(mine, chunk * chunk_elements, chunk_elements);
  const auto sum = piece(own, chunk * chunk_elements, chunk_elements);
  // My own contribution takes its place among the others before `sum`, which may be the same memory, is written.
  std::copy_n(my_chunk.begin(), my_chunk.bytes(), exchange.received.begin() + rank() * my_chunk.bytes());
  add_up(exchange, sum);
}

void MpiCollectives::add_up(const Exchange& exchange, Buffer sum) {
  if (sum.type == WireType::f32) {
    auto* out = static_cast<float*>(sum.data);
    std::copy_n(exchange.received.data(), sum.bytes(), sum.begin());
    for (int from = 1; from < size(); ++from) {
      const auto* in = reinterpret_cast<const float*>(exchange.received.data()) + from * sum.count;
      for (std::size_t i = 0; i < sum.count; ++i) out[i] += in[i];
    }
    return;
  }
  wide_sum_.assign(sum.count, 0);
  for (int from = 0; from < size(); ++from) {
    const auto* in = reinterpret_cast<const std::uint16_t*>(exchange.received.data()) + from * sum.count;
    for (std::size_t i = 0; i < sum.count; ++i) wide_sum_[i] += widen(in[i]);
  }
  std::ranges::transform(wide_sum_, static_cast<std::uint16_t*>(sum.data), narrow);
}

// Piece [r * part, ...) of `all`, which counts bytes, goes from rank r to all others.
void MpiCollectives::gather_parts(Buffer all, std::size_t part) {
  for (std::size_t begin = 0; begin < part; begin += message_bytes) {
    const auto piece_of = [&](int owner) { return piece(piece(all, owner * part, part), begin, message_bytes); };
    std::vector<MPI_Request> requests;
    for (int step = 1; step < size(); ++step) {
      const int from = (rank() - step + size()) % size(), to = (rank() + step) % size();
      const auto theirs = piece_of(from), mine = piece_of(rank());
      call_mpi([&] {
        return MPI_Irecv(theirs.data, message_size(theirs.bytes()), MPI_BYTE, from, tag, mpi_.comm(),
                         &requests.emplace_back());
      });
      call_mpi([&] {
        return MPI_Isend(mine.data, message_size(mine.bytes()), MPI_BYTE, to, tag, mpi_.comm(),
                         &requests.emplace_back());
      });
    }
    wait_all(requests, mpi_.limit_seconds(), "an MPI all_gather");
  }
}

}  // namespace millrace
