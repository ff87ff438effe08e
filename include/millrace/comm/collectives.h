#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include "millrace/comm/group.h"

namespace millrace {

// Moves whole tensors between the ranks of a group. Same order of calls on every rank. The order of additions depends
// on the number of ranks alone, and all_reduce_sum gives the same bits on all ranks and the same as reduce_scatter_sum.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // data := sum over ranks, in place.
  virtual void all_reduce_sum(std::span<float> data) = 0;
  // `data` is size() equal parts; own := the sum over ranks of part rank(). `own` is that part of `data` or memory
  // apart; the other parts of `data` are left as they were.
  virtual void reduce_scatter_sum(std::span<float> data, std::span<float> own) = 0;
  // `all` is size() equal parts; part r := rank r's `own`. `own` is that part of `all` or memory apart.
  virtual void all_gather(std::span<const std::byte> own, std::span<std::byte> all) = 0;
  virtual void broadcast(std::span<std::byte> data, int root = 0) = 0;
};

// Host memory: through MPI, or for a group of one without it. Collective.
std::unique_ptr<Collectives> make_host_collectives(const Group& group);

}  // namespace millrace
