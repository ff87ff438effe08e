#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "millrace/comm/group.h"

namespace millrace {

enum class WireType { f32, bf16, byte };
std::size_t bytes_of(WireType type);

// Elements in host or device memory, whichever the collectives are made for.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;
  WireType type = WireType::byte;

  std::size_t bytes() const { return count * bytes_of(type); }
  std::byte* begin() const { return static_cast<std::byte*>(data); }
  // Part `index` of `parts` equal ones.
  Buffer part(int index, int parts) const;
};
Buffer buffer_of(std::span<float> data);

// Moves whole tensors between the ranks of a group. Same order of calls on every rank, from one thread at a time. In
// host memory a call returns when it is done. In device memory it only starts a transfer, after the work that the
// device was given before; join() makes later work wait for it.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // data := sum over ranks, in place; f32 or bf16.
  virtual void all_reduce_sum(Buffer data) = 0;
  // `data` is size() equal parts; own := the sum over ranks of part rank(). `own` is that part of `data` or a buffer
  // apart; the other parts of `data` are left as they were. f32 or bf16.
  virtual void reduce_scatter_sum(Buffer data, Buffer own) = 0;
  // `all` is size() equal parts; part r := rank r's `own`. `own` is that part of `all` or a buffer apart.
  virtual void all_gather(Buffer own, Buffer all) = 0;
  virtual void broadcast(Buffer data, int root = 0) = 0;
  // Makes one transfer of all that `calls` starts, which costs the host a single launch; they complete together.
  virtual void together(const std::function<void()>& calls) { calls(); }

  // Whether calls return only when they are done; mark, join and wait then have nothing to do.
  virtual bool is_done_at_once() const { return true; }
  // A position in the sequence of transfers: after all that were started so far.
  using Mark = std::uint64_t;
  virtual Mark mark() { return 0; }
  // What the device is given from now on waits for the transfers before the mark, so it may read their results and
  // overwrite their inputs.
  virtual void join(Mark) {}
  // The host waits until all transfers are done, and calls `meanwhile` again and again while its own device still
  // computes what others wait for. Error(suspect_node) when that takes longer than the group's time limit.
  virtual void wait([[maybe_unused]] const std::function<void()>& meanwhile) {}
  void wait() {
    wait([] {});
  }
};

using MakeCollectives = std::function<std::unique_ptr<Collectives>(const Group&)>;

// Host memory: through MPI, or without it for a group of one. Sums are made in rank order and in float32; bf16 elements
// are rounded once. So a sum depends on the number of ranks alone, is the same on all ranks, and all_reduce_sum gives
// what reduce_scatter_sum gives. Collective.
std::unique_ptr<Collectives> make_host_collectives(const Group& group);

// Memory of GPU `device`, through NCCL. `compute_stream(device)`, a cudaStream_t, is asked for at every call: the
// transfer waits for what that stream holds then, and join() makes that stream wait for transfers. Sums depend on
// NCCL's choice of algorithm. Error(usage) on all ranks if two share a GPU, and in a build without CUDA;
// Error(suspect_node) if CUDA or NCCL fails, or the others do not come within the group's time limit. Collective.
std::unique_ptr<Collectives> make_device_collectives(const Group& group, int device,
                                                     void* (*compute_stream)(int device));

// The last complaint of NCCL in this process, which explains why the host waits for a GPU that waits for a transfer;
// empty if there was none.
std::string last_words_of_devices();

}  // namespace millrace
