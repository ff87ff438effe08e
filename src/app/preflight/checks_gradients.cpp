#include <algorithm>
#include <memory>

#include "millrace/comm/collectives.h"
#include "millrace/core/stopwatch.h"
#include "millrace/core/units.h"
#include "millrace/nn/device.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/tensor_buffer.h"
#include "preflight/checks.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr std::int64_t elements = 16 << 20;
constexpr std::uint64_t sum_bytes = sizeof(float) * elements;
constexpr int pattern = 13;  // small whole numbers: sums of a million trainers are exact in float32

// A bucket of gradients on one trainer, and what sums it over all.
struct Bucket {
  torch::Tensor places;     // (elements) float32: i mod 13
  torch::Tensor gradients;  // (elements) float32: (i + trainer) mod 13, plus 1; then their sum
  torch::Tensor expected;   // the sum
  std::unique_ptr<Collectives> collectives;

  Bucket(torch::Device device, int trainers) {
    const auto f32 = torch::dtype(torch::kFloat32).device(device);
    places = torch::arange(elements, f32).remainder_(pattern);
    gradients = torch::empty_like(places);
    expected = torch::zeros_like(places);
    for (int shift = 0; shift < pattern; ++shift) {
      const int alike = (trainers + pattern - 1 - shift) / pattern;  // trainers t with t mod 13 = shift
      if (alike > 0) expected.add_(of_trainer(shift), alike);
    }
    synchronize(device);
  }

  torch::Tensor of_trainer(int trainer) const { return (places + trainer % pattern).remainder_(pattern).add_(1); }

  // Returns the seconds until all have their sum, and adds the elements that are wrong.
  double sum(std::int64_t& wrong) {
    gradients.copy_(of_trainer(collectives->rank()));
    finish_own_work(gradients.device());
    const Stopwatch watch;
    collectives->all_reduce_sum(buffer_of(gradients));
    collectives->wait();
    const double seconds = watch.seconds();
    wrong += gradients.ne(expected).sum().item<std::int64_t>();
    return seconds;
  }
};

constexpr double slow_bus_rate = 5e9;  // of InfiniBand and NVLink none is as slow; nobody is suspect for it

// The rate of the slowest link of a ring, if a ring is what carries the sum: the "bus bandwidth" of nccl-tests.
double bus_rate(double seconds, int trainers) {
  return 2.0 * (trainers - 1) / trainers * static_cast<double>(sum_bytes) / seconds;
}

}  // namespace

void check_gradients(Checkup& checkup, const Session& session, const TrainPlan& plan, const Group& trainers) {
  constexpr double connect_seconds = 90, sum_seconds = 60;
  constexpr int tries = 5;
  const int count = static_cast<int>(plan.roles.trainers.size());
  if (count == 1) return checkup.skip("gradients", "one trainer");
  const auto demand = [&](double seconds, const Checkup::Work& work) {  // of trainers
    return checkup.demand("gradients", seconds, [&] { return plan.roles.trains(checkup.rank()) ? work() : json(); });
  };
  std::optional<Bucket> bucket;
  std::int64_t wrong = 0;
  demand(connect_seconds, [&] {  // here, where nobody waits for a full GPU
    bucket.emplace(session.device, count);
    return json::object();
  });
  const auto connected = demand(connect_seconds, [&]() -> json {
    bucket->collectives = collectives_on(session.device)(trainers);
    return {{"by", session.device.is_cuda() ? "NCCL" : "MPI"}};
  });
  const auto first = demand(connect_seconds, [&]() -> json { return {{"sum", bucket->sum(wrong)}}; });
  const auto summed = demand(sum_seconds, [&]() -> json {
    double shortest = sum_seconds;
    for (int i = 0; i < tries; ++i) shortest = std::min(shortest, bucket->sum(wrong));
    return {{"sum", shortest}, {"wrong", wrong}};
  });
  checkup.conclude([&] {
    const double seconds = most(facts_of<double>(summed, "sum")).value;
    const double rate = bus_rate(seconds, count);
    return Row{
        .detail = fmt::format("{} between {} trainers, ready in {}; {} summed in {}, the first time in {}; {} "
                              "of bus bandwidth",
                              facts_of<std::string>(connected, "by")[0].value, count,
                              describe_seconds(most(facts_of<double>(connected, "seconds")).value),
                              format_bytes(sum_bytes), describe_seconds(seconds),
                              describe_seconds(most(facts_of<double>(first, "sum")).value), describe_rate(rate)) +
                  (session.device.is_cuda() && rate < slow_bus_rate
                       ? "\nthat is slow for GPUs: NCCL_DEBUG=INFO tells whether NCCL goes by sockets"
                       : ""),
        .suspects = judge_sums(facts_of<std::int64_t>(summed, "wrong"))};
  });
}

}  // namespace millrace::preflight
