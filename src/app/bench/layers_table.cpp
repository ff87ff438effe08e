#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "bench/layers.h"
#include "median.h"

namespace millrace {

namespace {

const char* name_of(LayerKind kind) {
  switch (kind) {
    case LayerKind::convolution:
      return "convolution";
    case LayerKind::matrix_product:
      return "matrix product";
    case LayerKind::attention:
      return "attention";
  }
  return "";
}

const char* name_of(LayerPass pass) {
  switch (pass) {
    case LayerPass::forward:
      return "forward";
    case LayerPass::input_gradient:
      return "input gradient";
    case LayerPass::weight_gradient:
      return "weight gradient";
    case LayerPass::gradients:
      return "gradients";
  }
  return "";
}

const char* layout_of(const LayerSetting& setting) {
  return setting.channels_last ? "channels-last" : "NCHW";
}
const char* kernels_of(const LayerSetting& setting) {
  return setting.tries_kernels ? "tried" : "guessed";
}

// Of a step, in training's own setting.
double ms_of_step(const LayerTable& table, const LayerTable::Row& row) {
  return row.calls * median_of(row.own_ms(table.own));
}

std::vector<LayerTable::Row> sorted_rows(const LayerTable& table) {
  auto rows = table.rows;
  std::ranges::stable_sort(rows, std::greater(), [&](const auto& row) { return ms_of_step(table, row); });
  return rows;
}

double sum_of(const LayerTable& table) {
  double sum = 0;
  for (const auto& row : table.rows) sum += ms_of_step(table, row);
  return sum;
}

double teraflops(const LayerTable::Row& row, double ms) {
  return 1e-9 * flops_of(row.shape, row.pass) / ms;
}

bool has_choice_of_kernels(const LayerTable& table) {
  return std::ranges::any_of(table.settings, &LayerSetting::tries_kernels);
}

}  // namespace

std::string to_text(const LayerTable& table) {
  auto text = fmt::format("one call: ms and TFLOP/s; calls and share of {:.2f} ms, all calls of a step\n{:<72}",
                          sum_of(table), "");
  for (std::size_t i = 0; i < table.settings.size(); ++i)
    text += fmt::format(
        "{:>22}", fmt::format("{}{}{}", layout_of(table.settings[i]),
                              has_choice_of_kernels(table) ? fmt::format(", {}", kernels_of(table.settings[i])) : "",
                              i == table.own ? " *" : ""));
  text += '\n';
  for (const auto& row : sorted_rows(table)) {
    text += fmt::format("{:<15}{:<36}{:<16}{:>4}x", name_of(row.shape.kind), name_of(row.shape), name_of(row.pass),
                        row.calls);
    for (std::size_t i = 0; i < table.settings.size(); ++i)
      text += i < row.ms_of_calls.size() ? fmt::format("{:>12.4f}{:>10.3g}", median_of(row.ms_of_calls[i]),
                                                       teraflops(row, median_of(row.ms_of_calls[i])))
                                         : fmt::format("{:>22}", "");
    text += fmt::format("{:>7.2f} %\n", 100 * ms_of_step(table, row) / sum_of(table));
  }
  text += "* as training has it here, and the share is of that";
  if (has_choice_of_kernels(table)) text += "; tried: cuDNN measures its kernels for a shape, else it guesses";
  return text + "\n";
}

std::vector<nlohmann::ordered_json> to_json(const LayerTable& table) {
  const double sum = sum_of(table);
  std::vector<nlohmann::ordered_json> lines;
  for (const auto& row : sorted_rows(table)) {
    const bool has_settings = row.ms_of_calls.size() > 1;
    for (std::size_t i = 0; i < row.ms_of_calls.size(); ++i) {
      const auto& ms = row.ms_of_calls[i];
      const auto [least, most] = std::ranges::minmax(ms);
      auto figure = fmt::format("{} {}, {}", name_of(row.shape.kind), name_of(row.shape), name_of(row.pass));
      if (has_settings) figure += fmt::format(", {}", layout_of(table.settings[i]));
      if (has_settings && has_choice_of_kernels(table)) figure += fmt::format(", {}", kernels_of(table.settings[i]));
      nlohmann::ordered_json line = {{"figure", figure},
                                     {"unit", "ms"},
                                     {"median", median_of(ms)},
                                     {"min", least},
                                     {"max", most},
                                     {"runs", ms.size()},
                                     {"kind", name_of(row.shape.kind)},
                                     {"pass", name_of(row.pass)},
                                     {"calls", row.calls},
                                     {"gflop", 1e-9 * flops_of(row.shape, row.pass)},
                                     {"tflops", teraflops(row, median_of(ms))}};
      if (has_settings) line["layout"] = layout_of(table.settings[i]);
      if (has_settings && has_choice_of_kernels(table)) line["kernels"] = kernels_of(table.settings[i]);
      if (!has_settings || i == table.own) line["share"] = ms_of_step(table, row) / sum;
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace millrace
