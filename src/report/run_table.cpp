#include "run_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plot.h"

namespace millrace {

RunTable::RunTable(Runs runs) : runs_(runs) {
  if (runs.size() == 1) return;
  table_.header.emplace_back();
  for (const auto& run : runs) table_.header.push_back(run.name);
}

void RunTable::add(const std::string& name, const TellRun& tell) {
  std::vector<std::string> row = {name};
  for (const auto& run : runs_) row.push_back(tell(run));
  if (std::any_of(row.begin() + 1, row.end(), [](const auto& cell) { return !cell.empty(); }))
    table_.rows.push_back(std::move(row));
}

ReportTable without_empty_columns(const ReportTable& table) {
  ReportTable result{{}, std::vector<std::vector<std::string>>(table.rows.size())};
  for (std::size_t column = 0; column < table.header.size(); ++column) {
    const auto says_nothing = [&](const auto& row) { return row[column].empty(); };
    if (std::ranges::all_of(table.rows, says_nothing)) continue;
    result.header.push_back(table.header[column]);
    for (std::size_t i = 0; i < table.rows.size(); ++i)
      result.rows[i].push_back(table.rows[i][column].empty() ? "–" : table.rows[i][column]);
  }
  return result;
}

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", 100 * share) : "";
}

std::string with_unit(double value, std::string_view unit) {
  if (!std::isfinite(value)) return "";
  return unit.empty() ? short_number(value) : fmt::format("{} {}", short_number(value), unit);
}

double usual(const Series& series) {
  std::vector<double> values(series.values.begin() + static_cast<std::ptrdiff_t>(series.values.size() / 2),
                             series.values.end());
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::nan("");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

Series smoothed(const Series& series) {
  const double keep = 1 - 1 / std::max(5.0, static_cast<double>(series.values.size()) / 100);
  Series result = series;
  double sum = 0, weight = 0;
  for (double& value : result.values) {
    if (!std::isfinite(value)) continue;
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    value = sum / weight;
  }
  return result;
}

Series ratio(const Series& part, const Series& whole, double factor) {
  Series result;
  for (std::size_t i = 0, k = 0; i < part.steps.size() && k < whole.steps.size();) {
    if (part.steps[i] == whole.steps[k]) {
      result.steps.push_back(part.steps[i]);
      result.values.push_back(factor * part.values[i++] / whole.values[k++]);
    } else {
      part.steps[i] < whole.steps[k] ? ++i : ++k;
    }
  }
  return result;
}

}  // namespace millrace
