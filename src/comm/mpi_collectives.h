#pragma once
#include <mpi.h>

#include <vector>

#include "millrace/comm/collectives.h"
#include "mpi_group.h"

namespace millrace {

// Direct exchange in chunks that stay in the cache: every owner receives its chunk from all others and adds them up in
// the order of ranks, whoever owns it. So a sum has the same bits whatever the bucket sizes and the strategy are, at
// the price of one chunk of scratch memory per rank; the traffic is the least possible.
class MpiCollectives final : public Collectives {
 public:
  explicit MpiCollectives(Group group);
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  void all_reduce_sum(std::span<float> data) override;
  void reduce_scatter_sum(std::span<float> data, std::span<float> own) override;
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override;
  void broadcast(std::span<std::byte> data, int root) override { group_.broadcast(data, root); }

 private:
  // Chunk number k of every rank's part is exchanged at once; two such exchanges are under way at any time.
  struct Exchange {
    std::vector<float> received;  // one chunk per rank
    std::vector<MPI_Request> requests;
  };
  void reduce_parts(std::span<float> data, std::size_t part, std::span<float> own);
  void start(Exchange& exchange, std::span<float> data, std::size_t part, std::size_t chunk);
  void finish(Exchange& exchange, std::span<float> own, std::span<const float> mine, std::size_t chunk);
  void gather_parts(std::span<std::byte> all, std::size_t part);

  Group group_;
  const MpiGroup& mpi_;
  Exchange exchanges_[2];
};

}  // namespace millrace
