#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "command.h"

namespace millrace {
namespace {

double median_of(const std::vector<double>& sorted) {
  const auto middle = sorted.size() / 2;
  return sorted.size() % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

}  // namespace

void BenchResult::add(const std::string& name, const std::string& unit, double value) {
  auto found =
      std::find_if(figures_.begin(), figures_.end(), [&](const Figure& figure) { return figure.name == name; });
  if (found == figures_.end()) found = figures_.insert(figures_.end(), {name, unit, {}});
  found->values.push_back(value);
}

void BenchResult::print(bool json) const {
  for (const auto& figure : figures_) {
    auto sorted = figure.values;
    std::sort(sorted.begin(), sorted.end());
    if (json) {
      print_out(nlohmann::ordered_json{{"bench", bench_},
                                       {"figure", figure.name},
                                       {"unit", figure.unit},
                                       {"median", median_of(sorted)},
                                       {"min", sorted.front()},
                                       {"max", sorted.back()},
                                       {"runs", sorted.size()}}
                    .dump());
    } else {
      fmt::print("{:<11} {:<14} {:>12.2f} {:<10} ({:.2f} to {:.2f}, {} runs)\n", bench_, figure.name, median_of(sorted),
                 figure.unit, sorted.front(), sorted.back(), sorted.size());
    }
  }
  if (!profile_) return;
  if (!json) return print_out("\n" + to_text(*profile_));
  nlohmann::ordered_json line = {{"bench", bench_}, {"figure", "profile"}};
  line.update(to_json(*profile_));
  print_out(line.dump());
}

}  // namespace millrace
