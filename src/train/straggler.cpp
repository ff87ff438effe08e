#include "straggler.h"

#include <algorithm>
#include <cmath>

#include "millrace/core/log.h"

namespace millrace {
namespace {

// 0 = all are unknown.
double median(std::span<const double> seconds) {
  std::vector<double> known;
  std::ranges::copy_if(seconds, std::back_inserter(known), [](double value) { return std::isfinite(value); });
  if (known.empty()) return 0;
  const auto middle = known.begin() + static_cast<std::ptrdiff_t>((known.size() - 1) / 2);
  std::ranges::nth_element(known, middle);
  return *middle;
}

}  // namespace

Slowest find_slowest(std::span<const double> seconds) {
  Slowest slowest;
  const double usual = median(seconds);
  for (std::size_t i = 0; usual > 0 && i < seconds.size(); ++i)
    if (const double ratio = seconds[i] / usual; std::isfinite(ratio) && ratio > slowest.ratio) slowest = {i, ratio};
  return slowest;
}

std::vector<StragglerWatch::News> StragglerWatch::look(std::span<const double> seconds, std::int64_t steps) {
  places_.resize(seconds.size());
  std::vector<News> news;
  const double usual = median(seconds);
  for (std::size_t i = 0; usual > 0 && i < seconds.size(); ++i) {
    Place& place = places_[i];
    const double ratio = seconds[i] / usual;
    if (!std::isfinite(ratio)) continue;
    if (ratio <= slow_ratio) {
      if (place.told) news.push_back({i, ratio, false, 0});
      place = {};
      continue;
    }
    place.slow_steps += steps;
    ++place.slow_looks;
    if (place.slow_steps < patience || place.slow_looks < 2 || place.told) continue;
    place.told = true;
    news.push_back({i, ratio, true, place.slow_steps});
  }
  return news;
}

void warn_of_stragglers(const char* works, const std::vector<RankOnHost>& ranks,
                        const std::vector<StragglerWatch::News>& news, std::span<const GpuState> gpus) {
  for (const auto& [place, ratio, is_slow, steps] : news) {
    const auto& [rank, host] = ranks.at(place);
    if (is_slow) {
      const auto gpu = gpus.empty() ? "" : gpus[place].describe();
      log::warning("rank {} on {} {} {:.2f} times as long as the median for the same work, for {} steps{}", rank, host,
                   works, ratio, steps, gpu.empty() ? "" : "; its GPU: " + gpu);
    } else {
      log::info("rank {} on {} {} no longer than others any more", rank, host, works);
    }
  }
}

}  // namespace millrace
