// bench collectives: a bucket of gradients through the operations of training, in the memory and by the library that
// training takes, every result checked.
#include <torch/utils.h>

#include "bench/bench.h"
#include "millrace/comm/collectives.h"
#include "millrace/nn/device.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/tensor_buffer.h"

namespace millrace {
namespace {

class CollectivesBench {
 public:
  CollectivesBench(const Group& group, torch::Device device, std::int64_t elements)
      : group_(group),
        collectives_(collectives_on(device)(group)),
        pattern_(torch::arange(elements, torch::dtype(torch::kInt64).device(device))
                     .remainder(13)
                     .add(1)
                     .to(torch::kFloat32)),
        data_(torch::empty_like(pattern_)) {}

  // Seconds of the slowest rank.
  double all_reduce() {
    fill();
    const double seconds = time([&] { collectives_->all_reduce_sum(buffer_of(data_)); });
    check(data_, pattern_ * sum_of_ranks(), "all_reduce");
    return seconds;
  }

  double reduce_scatter() {
    fill();
    const auto own = part(data_, collectives_->rank());
    const double seconds = time([&] { collectives_->reduce_scatter_sum(buffer_of(data_), buffer_of(own)); });
    check(own, part(pattern_, collectives_->rank()) * sum_of_ranks(), "reduce_scatter");
    return seconds;
  }

  double all_gather() {
    fill();
    const auto own = part(data_, collectives_->rank());
    const double seconds = time([&] { collectives_->all_gather(buffer_of(own), buffer_of(data_)); });
    for (int rank = 0; rank < collectives_->size(); ++rank)
      check(part(data_, rank), part(pattern_, rank) * (rank + 1), "all_gather");
    return seconds;
  }

  double broadcast() {
    fill();
    const double seconds = time([&] { collectives_->broadcast(buffer_of(data_)); });
    check(data_, pattern_, "broadcast");
    return seconds;
  }

 private:
  torch::Tensor part(const torch::Tensor& whole, int rank) const {
    const auto elements = whole.size(0) / collectives_->size();
    return whole.narrow(0, rank * elements, elements);
  }
  int sum_of_ranks() const { return collectives_->size() * (collectives_->size() + 1) / 2; }

  // Small whole numbers, so that sums are exact whatever their order.
  void fill() {
    data_.copy_(pattern_).mul_(collectives_->rank() + 1);
    finish_own_work(data_.device());
  }

  template <class Body>
  double time(Body&& body) const {
    group_.barrier();
    const Stopwatch watch;
    body();
    collectives_->wait();
    double seconds = watch.seconds();
    group_.all_reduce_max(std::span(&seconds, 1));
    return seconds;
  }

  static void check(const torch::Tensor& got, const torch::Tensor& expected, const char* name) {
    ensure(torch::equal(got, expected), fmt::format("bench collectives: {} gave a wrong result", name));
  }

  const Group& group_;
  std::unique_ptr<Collectives> collectives_;
  const torch::Tensor pattern_;  // what a rank gives is this times its number, from 1 on
  torch::Tensor data_;
};

}  // namespace

BenchResult bench_collectives(const BenchConfig& c, World& world) {
  const auto group = world.group().duplicate();
  if (group.size() < 2)
    throw Error(Exit::usage, "bench collectives: one rank has nobody to talk to", "mpirun -n 2 millrace bench ...");
  const std::int64_t ranks = group.size();
  const auto elements = c.parallel.bucket_elements() / ranks * ranks;
  if (elements == 0) fail(Exit::usage, "parallel.bucket_mb: too little for {} ranks", ranks);
  CollectivesBench bench(group, resolve_device(c.run.device, world.local_rank()), elements);
  const double gigabytes = static_cast<double>(elements) * sizeof(float) / 1e9;

  BenchResult figures("collectives");
  repeat(c, group, [&](bool measured) {
    const double reduce = bench.all_reduce(), scatter = bench.reduce_scatter(), gather = bench.all_gather(),
                 broadcast = bench.broadcast();
    if (!measured) return;
    figures.add("all_reduce", "GB/s", gigabytes / reduce);
    figures.add("reduce_scatter", "GB/s", gigabytes / scatter);
    figures.add("all_gather", "GB/s", gigabytes / gather);
    figures.add("broadcast", "GB/s", gigabytes / broadcast);
  });
  return figures;
}

}  // namespace millrace
