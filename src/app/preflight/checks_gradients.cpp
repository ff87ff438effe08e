#include <algorithm>
#include <memory>

#include "millrace/comm/collectives.h"
#include "millrace/core/stopwatch.h"
#include "millrace/core/units.h"
#include "millrace/nn/device.h"
#include "millrace/parallel/sharded_model.h"
#include "preflight/checks.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

// A bucket of gradients on one trainer, and the way in which buckets are summed.
struct Bucket {
  torch::Tensor gradients;  // (elements) float32
  std::unique_ptr<Collectives> collectives;

  // Of trainer t all elements are t + 1. Returns the seconds until all have their sum.
  double sum() const {
    gradients.fill_(collectives->rank() + 1);
    finish_own_work(gradients.device());
    const Stopwatch watch;
    collectives->all_reduce_sum(memory_of(std::span(gradients.data_ptr<float>(), count())));
    collectives->wait();
    return watch.seconds();
  }
  std::size_t count() const { return static_cast<std::size_t>(gradients.numel()); }
};

// What each byte of a sum's seconds moves through the slowest link of a ring, the "bus bandwidth" of nccl-tests.
double bus_rate(std::uint64_t bytes, double seconds, int trainers) {
  return 2.0 * (trainers - 1) / trainers * static_cast<double>(bytes) / seconds;
}

Row judge_sums(const Answers& connected, const Answers& summed, std::uint64_t bytes, int trainers) {
  const double seconds = most(facts_of<double>(summed, "sum")).value;
  Row row{.detail =
              fmt::format("{} between {} trainers, ready in {}; {} summed in {}, {} of bus bandwidth",
                          facts_of<std::string>(connected, "by")[0].value, trainers,
                          describe_seconds(most(facts_of<double>(connected, "seconds")).value), format_bytes(bytes),
                          describe_seconds(seconds), describe_rate(bus_rate(bytes, seconds, trainers)))};
  const double expected = 0.5 * trainers * (trainers + 1);
  for (const auto* key : {"least", "most"})
    for (const auto& [rank, value] : numbers_of(summed, key))
      if (value != expected) row.suspect(rank, "its sum over all trainers is {}, not {}", value, expected);
  return row;
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
  const auto elements = static_cast<std::int64_t>(plan.config.parallel.bucket_mb * 1e6 / sizeof(float)) + 1;
  Bucket bucket;
  demand(connect_seconds, [&] {  // here, where nobody waits for a full GPU
    bucket.gradients = torch::empty({elements}, torch::dtype(torch::kFloat32).device(session.device));
    return json::object();
  });
  const auto connected = demand(connect_seconds, [&]() -> json {
    bucket.collectives = collectives_on(session.device)(trainers);
    bucket.sum();  // the first one connects
    return {{"by", session.device.is_cuda() ? "NCCL" : "MPI"}};
  });
  const auto summed = demand(sum_seconds, [&]() -> json {
    double shortest = sum_seconds;
    for (int i = 0; i < tries; ++i) shortest = std::min(shortest, bucket.sum());
    return {{"sum", shortest},
            {"least", number_text(bucket.gradients.min().item<double>())},
            {"most", number_text(bucket.gradients.max().item<double>())}};
  });
  checkup.conclude(
      [&] { return judge_sums(connected, summed, sizeof(float) * static_cast<std::uint64_t>(elements), count); });
}

}  // namespace millrace::preflight
