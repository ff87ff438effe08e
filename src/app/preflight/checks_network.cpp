#include "millrace/core/clock.h"
#include "preflight/checks.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr double clock_limit_seconds = 2;  // leases, signals before a job's end and dates of files bear no more
constexpr double talk_seconds = 40;
constexpr std::size_t message_bytes = 4 << 20;
constexpr double slow_share = 0.5;

// The shortest round trip of one message with another rank.
double measure(const Checkup& checkup, int peer, bool asks, std::span<std::byte> bytes, int tries) {
  double shortest = talk_seconds;
  for (int i = 0; i < tries; ++i) {
    const Stopwatch watch;
    if (asks) send(checkup.group(), peer, bytes, checkup.seconds_left());
    receive(checkup.group(), peer, bytes, checkup.seconds_left());
    if (!asks) send(checkup.group(), peer, bytes, checkup.seconds_left());
    shortest = std::min(shortest, watch.seconds());
  }
  return shortest;
}

// With both neighbours in the ring, at the same time as all other pairs.
json meet_neighbours(const Checkup& checkup, const std::vector<int>& ring) {
  std::vector<std::byte> message(message_bytes);
  const auto place = static_cast<int>(std::ranges::find(ring, checkup.rank()) - ring.begin());
  // A slow rank is slow with both, a neighbour of it only with one: the better one counts.
  double latency = talk_seconds, seconds = talk_seconds;
  for (const auto& [other, asks] : meetings(place, static_cast<int>(ring.size()))) {
    latency = std::min(latency, measure(checkup, ring[other], asks, std::span(message).first(8), 10));
    seconds = std::min(seconds, measure(checkup, ring[other], asks, message, 5));
  }
  return {{"latency", latency}, {"rate", 2 * static_cast<double>(message_bytes) / seconds}};
}

Row judge_messages(const Checkup& checkup, const Answers& answers, const Plan& plan) {
  const auto latencies = facts_of<double>(answers, "latency").values;
  const auto rates = facts_of<double>(answers, "rate");
  const auto slowest = rates.least();
  Row row{.detail = fmt::format("round trip {}, {} with a neighbour (medians); slowest {} ({})",
                                describe_seconds(median(latencies)), describe_rate(median(rates.values)),
                                describe_rate(slowest.value), checkup.name(slowest.rank))};
  const auto roles = plan.role_of_ranks();
  std::vector<std::string> kinds;
  for (const int rank : rates.ranks) kinds.push_back(roles[rank]);
  for (const auto i : far_below(rates.values, kinds, slow_share))
    row.suspects.push_back({rates.ranks[i], fmt::format("{} with both neighbours, less than half of what others have",
                                                        describe_rate(rates.values[i]))});
  return row;
}

}  // namespace

void check_clocks(Checkup& checkup) {
  const auto& group = checkup.group();
  if (group.size() == 1) return checkup.skip("clocks", "one rank");
  constexpr int tries = 8;
  std::vector<double> offsets(static_cast<std::size_t>(group.size()));
  checkup.demand("clocks", talk_seconds, [&]() -> json {
    double theirs = 0;
    const auto bytes = std::as_writable_bytes(std::span(&theirs, 1));
    for (int i = 0; i < tries && group.rank() != 0; ++i) {
      receive(group, 0, bytes, checkup.seconds_left());
      theirs = unix_seconds();
      send(group, 0, bytes, checkup.seconds_left());
    }
    if (group.rank() != 0) return true;
    for (int rank = 1; rank < group.size(); ++rank) {
      double shortest = talk_seconds;
      for (int i = 0; i < tries; ++i) {
        const double asked = unix_seconds();
        const Stopwatch watch;
        send(group, rank, bytes, checkup.seconds_left());
        receive(group, rank, bytes, checkup.seconds_left());
        const double passed = watch.seconds();
        if (passed < shortest) offsets[rank] = theirs - (asked + passed / 2);
        shortest = std::min(shortest, passed);
      }
    }
    return true;
  });
  checkup.conclude("clocks", [&] {
    const auto furthest = std::ranges::max_element(offsets, {}, [](double offset) { return std::abs(offset); });
    return Row{.detail = fmt::format("at most {} from that of rank 0 ({})", describe_seconds(std::abs(*furthest)),
                                     checkup.name(static_cast<int>(furthest - offsets.begin()))),
               .suspects = judge_clocks(offsets, clock_limit_seconds)};
  });
}

void check_messages(Checkup& checkup, const Plan& plan) {
  if (checkup.group().size() == 1) return checkup.skip("messages", "one rank");
  const auto ring = ring_over_hosts(checkup.hosts());
  const auto meet = [&] { return meet_neighbours(checkup, ring); };
  Row row;
  const auto answers = checkup.demand("messages", talk_seconds, meet);
  if (checkup.is_root()) row = judge_messages(checkup, answers, plan);
  if (checkup.broadcast(!row.suspects.empty()).get<bool>()) {  // what is slow only once is a coincidence
    const auto again = checkup.demand("messages", talk_seconds, meet);
    if (checkup.is_root()) {
      const auto slow = judge_messages(checkup, again, plan).suspects;
      std::erase_if(row.suspects, [&](const auto& suspect) {
        return std::ranges::find(slow, suspect.rank, &Suspicion::rank) == slow.end();
      });
    }
  }
  checkup.conclude("messages", [&] { return row; });
}

}  // namespace millrace::preflight
