#include <algorithm>
#include <cmath>

#include "millrace/core/clock.h"
#include "preflight/checks.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr double talk_seconds = 40;

// How far the own clock is ahead of that of rank 0, by the shortest of several round trips.
json compare_clocks(const Checkup& checkup) {
  constexpr int tries = 8;
  const int ranks = static_cast<int>(checkup.hosts().size());
  double theirs = 0, offset = 0, shortest = talk_seconds;
  const auto bytes = std::as_writable_bytes(std::span(&theirs, 1));
  for (int i = 0; i < tries && !checkup.is_root(); ++i) {
    const double asked = unix_seconds();
    const Stopwatch watch;
    checkup.send(0, bytes);
    checkup.receive(0, bytes);
    const double passed = watch.seconds();
    if (passed < shortest) offset = asked + passed / 2 - theirs;
    shortest = std::min(shortest, passed);
  }
  for (int i = 0; i < tries * (ranks - 1) && checkup.is_root(); ++i) {
    checkup.receive(1 + i / tries, bytes);
    theirs = unix_seconds();
    checkup.send(1 + i / tries, bytes);
  }
  return {{"offset", offset}};
}

// The shortest round trip of one message with another rank.
double measure(const Checkup& checkup, int peer, bool asks, std::span<std::byte> bytes, int tries) {
  double shortest = talk_seconds;
  for (int i = 0; i < tries; ++i) {
    const Stopwatch watch;
    if (asks) checkup.send(peer, bytes);
    checkup.receive(peer, bytes);
    if (!asks) checkup.send(peer, bytes);
    shortest = std::min(shortest, watch.seconds());
  }
  return shortest;
}

// With both neighbours in the ring, at the same time as all other pairs.
json meet_neighbours(const Checkup& checkup) {
  std::vector<std::byte> message(4 << 20);
  const auto ring = ring_over_hosts(checkup.hosts());
  // A slow rank is slow with both, a neighbour of it only with one: the better one counts.
  double latency = talk_seconds, seconds = talk_seconds;
  for (const auto& [other, asks] : meetings(position_in(ring, checkup.rank()), static_cast<int>(ring.size()))) {
    latency = std::min(latency, measure(checkup, ring[other], asks, std::span(message).first(8), 10));
    seconds = std::min(seconds, measure(checkup, ring[other], asks, message, 5));
  }
  return {{"latency", latency}, {"rate", 2 * static_cast<double>(message.size()) / seconds}};
}

Row judge_messages(const Checkup& checkup, const Answers& answers, const Roles& roles) {
  const auto rates = facts_of<double>(answers, "rate");
  const auto slowest = least(rates);
  Row row{.detail =
              fmt::format("round trip {}, {} with a neighbour (medians); slowest {} ({})",
                          describe_seconds(median(facts_of<double>(answers, "latency"))), describe_rate(median(rates)),
                          describe_rate(slowest.value), checkup.name(slowest.rank))};
  // Inside of one host messages go through memory, and who is slow has to share its cores.
  const auto& hosts = checkup.hosts();
  if (std::ranges::adjacent_find(hosts, std::ranges::not_equal_to()) == hosts.end()) return row;
  for (const auto& [role, of_role] : by_role(rates, roles))
    for (const auto& [rank, rate] : far_below(of_role, 0.5))
      row.suspect(rank, "{} with both neighbours, less than half of what others have", describe_rate(rate));
  return row;
}

}  // namespace

void check_clocks(Checkup& checkup) {
  constexpr double limit_seconds = 2;  // signals before a job's end and dates of files bear no more
  if (checkup.hosts().size() == 1) return checkup.skip("clocks", "one rank");
  const auto answers = checkup.demand("clocks", talk_seconds, [&] { return compare_clocks(checkup); });
  checkup.conclude([&] {
    const auto offsets = facts_of<double>(answers, "offset");
    const auto furthest = std::ranges::max(offsets, {}, [](const auto& offset) { return std::abs(offset.value); });
    return Row{.detail = fmt::format("at most {} from that of rank 0 ({})", describe_seconds(std::abs(furthest.value)),
                                     checkup.name(furthest.rank)),
               .suspects = judge_clocks(offsets, limit_seconds)};
  });
}

void check_messages(Checkup& checkup, const Roles& roles) {
  if (checkup.hosts().size() == 1) return checkup.skip("messages", "one rank");
  const auto meet = [&] {
    return judge_messages(checkup, checkup.demand("messages", talk_seconds, [&] { return meet_neighbours(checkup); }),
                          roles);
  };
  auto row = meet();
  if (!row.suspects.empty()) {  // what is slow only once is a coincidence
    const auto slow = meet().suspects;
    std::erase_if(row.suspects, [&](const auto& suspect) {
      return std::ranges::find(slow, suspect.rank, &Suspicion::rank) == slow.end();
    });
  }
  checkup.conclude([&] { return row; });
}

}  // namespace millrace::preflight
