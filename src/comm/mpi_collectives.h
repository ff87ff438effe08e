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
  void all_reduce_sum(Buffer data) override;
  void reduce_scatter_sum(Buffer data, Buffer own) override;
  void all_gather(Buffer own, Buffer all) override;
  void broadcast(Buffer data, int root) override { group_.broadcast({data.begin(), data.bytes()}, root); }

 private:
  // Chunk number k of every rank's part is exchanged at once; two such exchanges are under way at any time.
  struct Exchange {
    std::vector<std::byte> received;  // one chunk per rank
    std::vector<MPI_Request> requests;
  };
  void reduce_parts(Buffer data, std::size_t part, Buffer own);
  void start(Exchange& exchange, Buffer data, std::size_t part, std::size_t chunk);
  void finish(Exchange& exchange, Buffer own, Buffer mine, std::size_t chunk);
  void add_up(const Exchange& exchange, Buffer sum);
  void gather_parts(Buffer all, std::size_t part);

  Group group_;
  const MpiGroup& mpi_;
  Exchange exchanges_[2];
  std::vector<float> wide_sum_;  // of a chunk of bf16
};

}  // namespace millrace
