#include "evaluate/sweep_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "millrace/report/document.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

bool has_both(const Json& line) {
  return line.contains("fid") && line.contains("clip_score");
}

// A plot's places are whole numbers: thousandths of a score.
Plot plot_of(std::span<const Json> lines) {
  Plot plot{.title = "FID over CLIP score", .unit = "by guidance scale", .curves = {{}}, .x_unit = 0.001};
  std::map<std::int64_t, double> fid_at;
  for (const auto& line : lines)
    if (has_both(line)) fid_at[std::llround(line["clip_score"].get<double>() / plot.x_unit)] = line["fid"];
  for (const auto& [clip_score, fid] : fid_at) {
    plot.curves[0].points.steps.push_back(clip_score);
    plot.curves[0].points.values.push_back(fid);
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
