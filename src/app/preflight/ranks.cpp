#include "preflight/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace millrace::preflight {

std::vector<std::size_t> odd_ones(const std::vector<std::string>& values, std::string& usual) {
  std::map<std::string, std::size_t> counts;
  for (const auto& value : values) ++counts[value];
  std::size_t most = 0;
  for (const auto& value : values)  // in order, so that the lowest position decides
    if (counts[value] > most) most = counts[value], usual = value;
  std::vector<std::size_t> odd;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != usual) odd.push_back(i);
  return odd;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::vector<Suspicion> judge_clocks(const std::vector<double>& offsets, double limit_seconds) {
  const double usual = median(offsets);
  std::vector<Suspicion> suspects;
  for (std::size_t rank = 0; rank < offsets.size(); ++rank) {
    const double ahead = offsets[rank] - usual;
    if (std::abs(ahead) <= limit_seconds) continue;
    suspects.push_back({static_cast<int>(rank), fmt::format("its clock is {:.1f} s {} the others'", std::abs(ahead),
                                                            ahead > 0 ? "ahead of" : "behind")});
  }
  return suspects;
}

std::vector<std::size_t> far_below(const std::vector<double>& values, const std::vector<std::string>& kinds,
                                   double share) {
  std::map<std::string, std::vector<double>> of_kind;
  for (std::size_t i = 0; i < values.size(); ++i) of_kind[kinds[i]].push_back(values[i]);
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto& equals = of_kind[kinds[i]];
    if (equals.size() >= 3 && values[i] < share * median(equals)) found.push_back(i);
  }
  return found;
}

std::vector<SharedGpu> shared_gpus(const std::vector<std::string>& uuids, const std::vector<std::string>& hosts) {
  std::map<std::string, int> first;
  std::vector<SharedGpu> shared;
  for (std::size_t i = 0; i < uuids.size(); ++i) {
    if (uuids[i].empty()) continue;
    const int rank = static_cast<int>(i);
    const auto [known, is_new] = first.emplace(uuids[i], rank);
    if (!is_new) shared.push_back({rank, known->second, hosts[i]});
  }
  return shared;
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

std::vector<int> partners(const std::vector<std::string>& hosts) {
  const std::size_t ranks = hosts.size();
  std::vector<int> partner(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::size_t other = (rank + 1) % ranks;
    while (other != rank && hosts[other] == hosts[rank]) other = (other + 1) % ranks;
    partner[rank] = static_cast<int>(other == rank ? (rank + 1) % ranks : other);
  }
  return partner;
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
