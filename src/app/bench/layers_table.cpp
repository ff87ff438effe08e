#include <fmt/format.h>

#include <algorithm>
#include <array>
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

constexpr std::array layouts{Layout::nchw, Layout::channels_last};

const char* name_of(Layout layout) {
  return layout == Layout::channels_last ? "channels-last" : "NCHW";
}

// Of a step, in training's own layout.
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

}  // namespace

std::string to_text(const LayerTable& table) {
  auto text = fmt::format("one call: ms and TFLOP/s; calls and share of {:.2f} ms, all calls of a step\n{:<72}",
                          sum_of(table), "");
  for (const auto layout : layouts)
    text += fmt::format("{:>22}", fmt::format("{}{}", name_of(layout), layout == table.own ? " *" : ""));
  text += '\n';
  for (const auto& row : sorted_rows(table)) {
    text += fmt::format("{:<15}{:<36}{:<16}{:>4}x", name_of(row.shape.kind), name_of(row.shape), name_of(row.pass),
                        row.calls);
    for (std::size_t i = 0; i < layouts.size(); ++i)
      text += i < row.ms_of_calls.size() ? fmt::format("{:>12.4f}{:>10.3g}", median_of(row.ms_of_calls[i]),
                                                       teraflops(row, median_of(row.ms_of_calls[i])))
                                         : fmt::format("{:>22}", "");
    text += fmt::format("{:>7.2f} %\n", 100 * ms_of_step(table, row) / sum_of(table));
  }
  return text + "* as training has it here, and the share is of that\n";
}

std::vector<nlohmann::ordered_json> to_json(const LayerTable& table) {
  const double sum = sum_of(table);
  std::vector<nlohmann::ordered_json> lines;
  for (const auto& row : sorted_rows(table)) {
    const bool has_layouts = row.ms_of_calls.size() > 1;
    for (std::size_t i = 0; i < row.ms_of_calls.size(); ++i) {
      const auto& ms = row.ms_of_calls[i];
      const auto [least, most] = std::ranges::minmax(ms);
      auto figure = fmt::format("{} {}, {}", name_of(row.shape.kind), name_of(row.shape), name_of(row.pass));
      if (has_layouts) figure += fmt::format(", {}", name_of(layouts[i]));
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
      if (has_layouts) line["layout"] = name_of(layouts[i]);
      if (!has_layouts || layouts[i] == table.own) line["share"] = ms_of_step(table, row) / sum;
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

}  // namespace millrace
