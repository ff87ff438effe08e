// bench collectives: a bucket of gradients through the operations of training, in host memory, every result checked.

#include "bench/bench.h"
#include "millrace/comm/collectives.h"

namespace millrace {
namespace {

// Small whole numbers, so that sums are exact whatever their order.
float value_of(int rank, std::size_t element) {
  return static_cast<float>((rank + 1) * static_cast<int>(1 + element % 13));
}

class CollectivesBench {
 public:
  CollectivesBench(const Group& group, std::size_t elements)
      : group_(group), collectives_(make_host_collectives(group)), data_(elements) {}

  // Seconds of the slowest rank.
  double all_reduce() {
    fill();
    const double seconds = time([&] { collectives_->all_reduce_sum(memory_of(data_)); });
    check_sums(data_, 0, "all_reduce");
    return seconds;
  }

  double reduce_scatter() {
    fill();
    const auto own = part(collectives_->rank());
    const double seconds = time([&] { collectives_->reduce_scatter_sum(memory_of(data_), memory_of(own)); });
    check_sums(own, first_of(collectives_->rank()), "reduce_scatter");
    return seconds;
  }

  double all_gather() {
    fill();
    const auto own = memory_of(part(collectives_->rank()));
    const double seconds = time([&] { collectives_->all_gather(own, memory_of(data_)); });
    for (int rank = 0; rank < collectives_->size(); ++rank)
      check_values(rank, first_of(rank), part(rank), "all_gather");
    return seconds;
  }

  double broadcast() {
    fill();
    const double seconds = time([&] { collectives_->broadcast(memory_of(data_)); });
    check_values(0, 0, data_, "broadcast");
    return seconds;
  }

 private:
  std::size_t first_of(int rank) const { return static_cast<std::size_t>(rank) * data_.size() / collectives_->size(); }
  std::span<float> part(int rank) { return std::span(data_).subspan(first_of(rank), first_of(1)); }

  void fill() {
    for (std::size_t i = 0; i < data_.size(); ++i) data_[i] = value_of(collectives_->rank(), i);
  }

  template <class Body>
  double time(Body&& body) const {
    group_.barrier();
    const Stopwatch watch;
    body();
    double seconds = watch.seconds();
    group_.all_reduce_max(std::span(&seconds, 1));
    return seconds;
  }

  void check_sums(std::span<const float> got, std::size_t first, const char* name) const {
    const int ranks = collectives_->size();
    for (std::size_t i = 0; i < got.size(); ++i)
      ensure(got[i] == value_of(0, first + i) * static_cast<float>(ranks * (ranks + 1) / 2),
             fmt::format("bench collectives: {} gave a wrong sum", name));
  }

  void check_values(int rank, std::size_t first, std::span<const float> got, const char* name) const {
    for (std::size_t i = 0; i < got.size(); ++i)
      ensure(got[i] == value_of(rank, first + i), fmt::format("bench collectives: {} gave a wrong value", name));
  }

  const Group& group_;
  std::unique_ptr<Collectives> collectives_;
  std::vector<float> data_;
};

}  // namespace

BenchResult bench_collectives(const BenchConfig& c, World& world) {
  const auto group = world.group().duplicate();
  if (group.size() < 2)
    throw Error(Exit::usage, "bench collectives: one rank has nobody to talk to", "mpirun -n 2 millrace bench ...");
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto elements = static_cast<std::size_t>(c.parallel.bucket_mb * 1e6 / sizeof(float)) / ranks * ranks;
  if (elements == 0) fail(Exit::usage, "parallel.bucket_mb: too little for {} ranks", ranks);
  CollectivesBench bench(group, elements);
  const double gigabytes = static_cast<double>(elements * sizeof(float)) / 1e9;

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
