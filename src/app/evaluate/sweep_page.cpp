#include "evaluate/sweep_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "millrace/report/document.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

bool has_both(const Json& line) {
  return line.contains("fid") && line.contains("clip_score");
}

// In the order of the scales, in which FID need not follow the CLIP score. A plot's places are whole numbers:
// thousandths of a score.
Plot plot_of(std::span<const Json> lines) {
  Plot plot{.title = "FID over CLIP score", .unit = "a point for each guidance scale", .curves = {{}}, .x_unit = 0.001};
  auto& curve = plot.curves[0];
  for (const auto& line : lines) {
    if (!has_both(line)) continue;
    curve.points.steps.push_back(std::llround(line["clip_score"].get<double>() / plot.x_unit));
    curve.points.values.push_back(line["fid"].get<double>());
    curve.labels.push_back(fmt::format("{}", line["guidance_scale"].get<double>()));
  }
  return plot;
}

ReportTable table_of(std::span<const Json> lines) {
  ReportTable table{{"guidance", "FID", "KID", "CLIP score", "images"}, {}};
  for (const auto& line : lines) {
    const auto number = [&](const char* key) {
      return line.contains(key) ? fmt::format("{:.5g}", line[key].get<double>()) : std::string("–");
    };
    table.rows.push_back(
        {number("guidance_scale"), number("fid"), number("kid"), number("clip_score"), number("images")});
  }
  return table;
}

}  // namespace

std::optional<std::string> render_sweep(const std::string& model, std::span<const Json> lines) {
  if (std::ranges::count_if(lines, has_both) < 2) return std::nullopt;
  return render_html(
      {.title = "Guidance sweep", .subtitle = model, .sections = {{"", {plot_of(lines), table_of(lines)}}}});
}

}  // namespace millrace
