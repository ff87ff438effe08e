#include <algorithm>
#include <numeric>

#include "millrace/comm/collectives.h"
#include "preflight/checks.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr double ring_seconds = 60, reduce_seconds = 30;
constexpr double slow_share = 0.5;

// Round trips of one message with another rank: the shortest time.
double measure(const Checkup& checkup, int peer, bool asks, std::span<std::byte> bytes, int tries) {
  double shortest = ring_seconds;
  for (int i = 0; i < tries; ++i) {
    const Stopwatch watch;
    if (asks) send(checkup.group(), peer, bytes, checkup.seconds_left());
    receive(checkup.group(), peer, bytes, checkup.seconds_left());
    if (!asks) send(checkup.group(), peer, bytes, checkup.seconds_left());
    shortest = std::min(shortest, watch.seconds());
  }
  return shortest;
}

// What a rank has seen of a neighbour.
struct Link {
  double latency = ring_seconds, bytes_per_second = 0;
};

Link measure_link(const Checkup& checkup, int peer, bool asks, std::span<std::byte> large) {
  Link link;
  link.latency = measure(checkup, peer, asks, large.first(8), 20);
  link.bytes_per_second = 2 * static_cast<double>(large.size()) / measure(checkup, peer, asks, large, 5);
  return link;
}

// Every rank with the one before and the one after it in the ring. Whoever has been asked asks next, so that the
// messages of one pair have the network to themselves.
json go_round(const Checkup& checkup, const std::vector<int>& ring, std::span<std::byte> large) {
  const std::size_t ranks = ring.size(),
                    place = static_cast<std::size_t>(std::ranges::find(ring, checkup.world().rank()) - ring.begin());
  const int before = ring[(place + ranks - 1) % ranks], after = ring[(place + 1) % ranks];
  std::vector<Link> links;
  if (place == 0) links.push_back(measure_link(checkup, after, true, large));
  if (place > 0 || ranks > 2) links.push_back(measure_link(checkup, before, false, large));
  if (place > 0 && (ranks > 2 || place + 1 < ranks)) links.push_back(measure_link(checkup, after, true, large));
  // A slow rank is slow with both neighbours, a neighbour of it only with one.
  double latency = ring_seconds, rate = 0;
  for (const auto& link : links) {
    latency = std::min(latency, link.latency);
    rate = std::max(rate, link.bytes_per_second);
  }
  return {{"latency", latency}, {"rate", rate}};
}

std::vector<std::size_t> find_slow(const std::vector<Answer>& answers, const Plan& plan) {
  std::vector<int> ranks;
  const auto rates = facts_of<double>(answers, "rate", ranks);
  std::vector<std::string> kinds;
  for (const int rank : ranks) kinds.push_back(plan.trains(rank) ? "trainer" : "producer");
  return far_below(rates, kinds, slow_share);
}

Row judge_ring(const std::vector<Answer>& answers, const std::vector<std::size_t>& slow, const Checkup& checkup) {
  std::vector<int> ranks;
  const auto latencies = facts_of<double>(answers, "latency", ranks), rates = facts_of<double>(answers, "rate", ranks);
  const auto least = std::ranges::min_element(rates);
  Row row{
      .detail = fmt::format("round trip {}, {} with a neighbour (medians); slowest {} ({})",
                            describe_seconds(median(latencies)), describe_rate(median(rates)), describe_rate(*least),
                            checkup.name(ranks[static_cast<std::size_t>(least - rates.begin())])),
      .suspects = {}};
  for (const auto i : slow)
    row.suspects.push_back({ranks[i], fmt::format("{} with both neighbours, less than half of what others have",
                                                  describe_rate(rates[i]))});
  return row;
}

void check_neighbours(Checkup& checkup, const Plan& plan) {
  std::vector<std::byte> large(8 << 20);
  const auto ring = ring_over_hosts(checkup.world().hosts());
  std::vector<Answer> answers;
  std::vector<std::size_t> slow;
  for (int round = 0; round < 2; ++round) {  // what is slow only once is a coincidence
    answers = checkup.ask("messages", ring_seconds, [&] { return go_round(checkup, ring, large); });
    Row failed;
    if (checkup.is_root()) failed = {.detail = "", .suspects = failed_alone(answers), .ends = true};
    if (checkup.tell(!failed.suspects.empty()).get<bool>()) return checkup.conclude("messages", failed);
    const auto now = checkup.is_root() ? find_slow(answers, plan) : slow;
    if (round == 0) {
      slow = now;
    } else {
      std::erase_if(slow, [&](std::size_t i) { return std::ranges::find(now, i) == now.end(); });
    }
    if (!checkup.tell(!slow.empty()).get<bool>()) break;
  }
  Row row;
  if (checkup.is_root()) row = judge_ring(answers, slow, checkup);
  checkup.conclude("messages", row);
}

void check_all_reduce(Checkup& checkup, const TrainConfig& config, const Plan& plan) {
  const bool takes_part = plan.trains(checkup.world().rank());
  const int trainers = static_cast<int>(plan.roles.trainers.size());
  if (trainers == 1) return checkup.skip("all-reduce", "one trainer");
  constexpr double most_mb = 64;
  const auto elements = static_cast<std::size_t>(std::min(most_mb, config.parallel.bucket_mb) * 1e6 / sizeof(float));
  const auto answers = checkup.ask("all-reduce", reduce_seconds, [&]() -> json {
    if (!takes_part) return nullptr;
    const auto collectives = make_host_collectives(plan.of_role);
    std::vector<float> data(elements);
    double shortest = reduce_seconds;
    bool right = true;
    for (int i = 0; i < 3; ++i) {
      std::ranges::fill(data, static_cast<float>(collectives->rank() + 1));
      plan.of_role.barrier();
      const Stopwatch watch;
      collectives->all_reduce_sum(data);
      shortest = std::min(shortest, watch.seconds());
      const auto sum = static_cast<float>(trainers * (trainers + 1) / 2);
      right &= std::ranges::all_of(data, [&](float value) { return value == sum; });
    }
    if (!right) fail(Exit::io, "it got wrong sums of {} numbers", elements);
    return {{"seconds", shortest}};
  });
  Row row;
  if (checkup.is_root()) {
    std::vector<int> ranks;
    const auto seconds = facts_of<double>(answers, "seconds", ranks);
    row.suspects = failed_alone(answers);
    row.ends = true;
    if (!seconds.empty())
      row.detail = fmt::format("{} among {} trainers in {}, sums right", format_bytes(elements * sizeof(float)),
                               trainers, describe_seconds(std::ranges::max(seconds)));
  }
  checkup.conclude("all-reduce", row);
}

// The largest parcel of each producer to a trainer of its own, one after the other.
void check_parcels(Checkup& checkup, const Plan& plan) {
  if (plan.roles.all_in_one) return checkup.skip("parcels", "every rank makes its own samples");
  const int rank = checkup.world().rank();
  const auto answers = checkup.ask("parcels", ring_seconds, [&]() -> json {
    std::vector<std::byte> parcel(plan.parcel_bytes);
    json facts;
    for (std::size_t producer = 0; producer < plan.roles.producers.size(); ++producer) {
      const int from = plan.roles.producers[producer];
      const int to = pick(plan.roles.trainers, plan.routing.trainers_of(static_cast<int>(producer))).front();
      const double limit = checkup.seconds_left();
      checkup.group().set_time_limit(limit);
      checkup.group().barrier();
      if (rank == to) {
        for (int i = 0; i < 3; ++i) {
          receive(checkup.group(), from, parcel, limit);
          send(checkup.group(), from, std::span(parcel).first(1), limit);
        }
      } else if (rank == from) {
        double shortest = limit;
        for (int i = 0; i < 3; ++i) {
          const Stopwatch watch;
          send(checkup.group(), to, parcel, limit);
          receive(checkup.group(), to, std::span(parcel).first(1), limit);
          shortest = std::min(shortest, watch.seconds());
        }
        facts = {{"rate", static_cast<double>(parcel.size()) / shortest}};
      }
    }
    return facts;
  });
  Row row;
  if (checkup.is_root()) {
    std::vector<int> ranks;
    const auto rates = facts_of<double>(answers, "rate", ranks);
    row.suspects = failed_alone(answers);
    row.ends = !row.suspects.empty();
    if (!rates.empty()) {
      const auto least = std::ranges::min_element(rates);
      row.detail = fmt::format("{} from a producer to a trainer at {} (median); slowest {} ({})",
                               format_bytes(plan.parcel_bytes), describe_rate(median(rates)), describe_rate(*least),
                               checkup.name(ranks[static_cast<std::size_t>(least - rates.begin())]));
    }
  }
  checkup.conclude("parcels", row);
}

}  // namespace

void check_network(Checkup& checkup, const TrainConfig& config, const Plan& plan) {
  if (checkup.world().size() == 1) {
    checkup.skip("messages", "one rank");
  } else {
    check_neighbours(checkup, plan);
    check_all_reduce(checkup, config, plan);
    check_parcels(checkup, plan);
  }
  checkup.skip("NCCL", "gradients travel through MPI");
}

}  // namespace millrace::preflight
