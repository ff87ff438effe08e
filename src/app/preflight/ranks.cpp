#include "preflight/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <ranges>
#include <utility>

#include "median.h"
#include "millrace/core/error.h"

namespace millrace::preflight {

std::vector<Odd> odd_ones(const Facts<std::string>& facts) {
  std::map<std::string, int> counts;
  int most = 0;
  for (const auto& fact : facts) most = std::max(most, ++counts[fact.value]);
  std::erase_if(counts, [&](const auto& entry) { return entry.second < most; });
  std::vector<Odd> odd;
  for (const auto& [rank, value] : facts) {
    const auto& first = counts.begin()->first;
    if (counts.size() > 1 || value != first)
      odd.push_back({rank, value, value == first ? std::next(counts.begin())->first : first});
  }
  return odd;
}

double median(const Facts<double>& facts) {
  if (facts.empty()) return 0;
  std::vector<double> values;
  for (const auto& fact : facts) values.push_back(fact.value);
  return median_of(std::move(values));
}

std::optional<double> usual_number(const Facts<double>& facts) {
  auto finite = facts;
  std::erase_if(finite, [](const auto& fact) { return !std::isfinite(fact.value); });
  return finite.empty() ? std::nullopt : std::optional(median(finite));
}

Facts<double> far_from(const Facts<double>& facts, double usual, double share) {
  auto far = facts;
  std::erase_if(far, [&](const auto& fact) { return std::abs(fact.value - usual) <= share * std::abs(usual); });
  return far;
}

Facts<double> far_below(const Facts<double>& facts, double share) {
  if (facts.size() < 3) return {};
  auto low = facts;
  std::erase_if(low, [limit = share * median(facts)](const auto& fact) { return !(fact.value < limit); });
  return low;
}

std::vector<Suspicion> judge_clocks(const Facts<double>& offsets, double limit_seconds) {
  const double usual = median(offsets);
  std::vector<Suspicion> suspects;
  for (const auto& [rank, offset] : offsets)
    if (const double ahead = offset - usual; std::abs(ahead) > limit_seconds)
      suspects.push_back({rank, ahead > 0 ? fmt::format("its clock is {:.1f} s ahead of the others'", ahead)
                                          : fmt::format("its clock is {:.1f} s behind the others'", -ahead)});
  return suspects;
}

std::vector<Suspicion> judge_sums(const Facts<std::int64_t>& wrong) {
  if (const auto fewest = least(wrong).value; fewest > 0)
    throw Error(
        Exit::suspect_node,
        fmt::format("the sum of the trainers' gradients is wrong on all of them, in {} elements at least", fewest),
        "memory, GPU or network of one of them changes what it carries: try halves of the nodes");
  std::vector<Suspicion> suspects;
  for (const auto& [rank, elements] : wrong)
    if (elements > 0)
      suspects.push_back({rank, fmt::format("its sum of all trainers' gradients is wrong in {} elements", elements)});
  return suspects;
}

std::vector<int> ring_over_hosts(const std::vector<std::string>& hosts) {
  std::map<std::string, int> seen;
  std::vector<int> place(hosts.size());
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) place[rank] = seen[hosts[rank]]++;
  std::vector<int> ring(hosts.size());
  std::iota(ring.begin(), ring.end(), 0);
  std::stable_sort(ring.begin(), ring.end(), [&](int a, int b) { return place[a] < place[b]; });
  return ring;
}

std::vector<Meeting> meetings(int place, int ranks) {
  const Meeting after{(place + 1) % ranks, true}, before{(place + ranks - 1) % ranks, false};
  if (ranks == 1) return {};
  if (ranks == 2) return {place == 0 ? after : before};
  // Of a place with the one after it; the last place of an odd ring meets the first when both have met the others.
  const auto round = [&](int first) { return ranks % 2 && first == ranks - 1 ? 2 : first % 2; };
  if (round(place) < round(before.place)) return {after, before};
  return {before, after};
}

std::string describe_seconds(double seconds) {
  if (seconds < 0.001) return fmt::format("{:.0f} us", 1e6 * seconds);
  if (seconds < 0.1) return fmt::format("{:.0f} ms", 1e3 * seconds);
  return seconds < 10 ? fmt::format("{:.2f} s", seconds) : fmt::format("{:.0f} s", seconds);
}

std::string describe_rate(double bytes_per_second) {
  return bytes_per_second < 1e9 ? fmt::format("{:.1f} MB/s", bytes_per_second / 1e6)
                                : fmt::format("{:.1f} GB/s", bytes_per_second / 1e9);
}

}  // namespace millrace::preflight
