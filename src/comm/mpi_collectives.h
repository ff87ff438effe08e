#pragma once
#include <mpi.h>

#include <vector>

#include "millrace/comm/collectives.h"
#include "mpi_group.h"

namespace millrace {

// Direct exchange in chunks that stay in the cache: every owner receives its chunk from all others and adds them up in
// the order of ranks, whoever owns it. So a sum has the same bits whatever the bucket sizes and the strategy are, at
// the price of two chunks of scratch memory, at most 1 MiB, on every rank for each rank; the traffic is the least
// possible.
class MpiCollectives final : public Collectives {
 public:
  explicit MpiCollectives(Group group);
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  void all_reduce_sum(Memory data) override;
  void reduce_scatter_sum(Memory data, Memory own) override;
  void all_gather(Memory own, Memory all) override;
  void broadcast(Memory data, int root) override { group_.broadcast({data.begin(), data.bytes()}, root); }

 private:
  // Chunk number k of every rank's part is exchanged at once; two such exchanges are under way at any time.
  struct Exchange {
    std::vector<std::byte> received;  // one chunk per rank
    std::vector<MPI_Request> requests;
  };
  void reduce_parts(Memory data, std::size_t part, Memory own);
  void start(Exchange& exchange, Memory data, std::size_t part, std::size_t chunk);
  void finish(Exchange& exchange, Memory own, Memory mine, std::size_t chunk);
  void add_up(const Exchange& exchange, Memory sum);
  void gather_parts(Memory all, std::size_t part);

  Group group_;
  const MpiGroup& mpi_;
  Exchange exchanges_[2];
  std::vector<float> wide_sum_;  // of a chunk of bf16
};

}  // namespace millrace
