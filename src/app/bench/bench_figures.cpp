#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "median.h"
#include "output.h"

namespace millrace {

void BenchResult::add(const std::string& name, const std::string& unit, double value) {
  auto found =
      std::find_if(figures_.begin(), figures_.end(), [&](const Figure& figure) { return figure.name == name; });
  if (found == figures_.end()) found = figures_.insert(figures_.end(), {name, unit, {}});
  found->values.push_back(value);
}

void BenchResult::print(bool json) const {
  for (const auto& figure : figures_) {
    const auto median = median_of(figure.values);
    const auto [least, most] = std::ranges::minmax(figure.values);
    if (json) {
      nlohmann::ordered_json line = {
          {"bench", bench_}, {"figure", figure.name}, {"unit", figure.unit},         {"median", median},
          {"min", least},    {"max", most},           {"runs", figure.values.size()}};
      if (resolution_) line["resolution"] = *resolution_;
      print_out(line.dump());
    } else {
      say("{:<11} {:<14} {:>12.2f} {:<10} ({:.2f} to {:.2f}, {} runs)\n", bench_, figure.name, median, figure.unit,
          least, most, figure.values.size());
    }
  }
  if (!json) {
    if (profile_) print_out(fmt::format("\n{}", to_text(*profile_)));
    if (layers_) print_out(fmt::format("\n{}", to_text(*layers_)));
    return;
  }
  const auto print_line = [&](nlohmann::ordered_json line, const nlohmann::ordered_json& of) {
    line.update(of);
    print_out(line.dump());
  };
  if (profile_) print_line({{"bench", bench_}, {"figure", "profile"}}, to_json(*profile_));
  if (layers_)
    for (const auto& line : to_json(*layers_)) print_line({{"bench", bench_}}, line);
}

}  // namespace millrace
