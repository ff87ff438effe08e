#include "plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "millrace/core/text.h"
#include "millrace/core/units.h"

namespace millrace {
namespace {

constexpr double left = 56, top = 12, bottom = 28, line = 15;
constexpr std::size_t columns = 560;  // of a curve

// In the SVG's own units, which are about pixels. On the right stand the curves' names.
struct Frame {
  double width, height, right;

  double x(double share) const { return left + share * (width - left - right); }
  double y(double share) const { return top + (1 - share) * (height - top - bottom); }
};

Frame frame_of(const Plot& plot, PlotSize size) {
  const bool has_names = std::ranges::any_of(plot.curves, [](const Curve& curve) { return !curve.name.empty(); });
  const double right = has_names ? 96 : 12;
  return size == PlotSize::wide ? Frame{840, 260, right} : Frame{420, 190, right};
}

struct Range {
  double low, high;
  double at(double value) const { return (value - low) / (high - low); }
};

// 1, 2 or 5 times a power of ten, about `wanted` of them.
std::vector<double> ticks_of(const Range& range, int wanted) {
  const double rough = (range.high - range.low) / wanted, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  std::vector<double> ticks;
  for (double tick = std::ceil(range.low / step - 1e-9) * step; tick <= range.high + 1e-9 * step; tick += step)
    ticks.push_back(std::abs(tick) < 1e-9 * step ? 0 : tick);
  return ticks;
}

// Of a hundredth of the points at each end the frame shows only what lies near: one spike must not flatten a curve.
std::optional<Range> range_of(const Plot& plot) {
  std::vector<double> values;
  for (const auto& curve : plot.curves)
    for (const double value : curve.points.values)
      if (std::isfinite(value)) values.push_back(value);
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  const auto at = [&](double share) { return values[static_cast<std::size_t>(share * (values.size() - 1))]; };
  const double spread = at(0.99) - at(0.01);
  Range range{std::max(values.front(), at(0.01) - spread), std::min(values.back(), at(0.99) + spread)};
  if (plot.from_zero) range.low = std::min(0.0, range.low);
  if (range.high - range.low < 1e-12 * std::max(1.0, std::abs(range.high)))
    range = {range.low - std::max(1e-6, 0.1 * std::abs(range.low)),
             range.high + std::max(1e-6, 0.1 * std::abs(range.high))};
  const double margin = 0.04 * (range.high - range.low);
  return Range{plot.from_zero && range.low == 0 ? 0 : range.low - margin, range.high + margin};
}

Range steps_of(const Plot& plot) {
  double low = INFINITY, high = -INFINITY;
  for (const auto& curve : plot.curves) {
    if (curve.points.steps.empty()) continue;
    const auto [least, most] = std::ranges::minmax(curve.points.steps);
    low = std::min(low, static_cast<double>(least));
    high = std::max(high, static_cast<double>(most));
  }
  return high > low ? Range{low, high} : Range{low - 1, high + 1};
}

// The points that are drawn: of each column the first, lowest, highest and last.
std::vector<std::size_t> drawn_points(const Series& series) {
  const auto count = series.values.size();
  std::vector<std::size_t> drawn;
  for (std::size_t column = 0; column < columns; ++column) {
    const auto begin = column * count / columns, end = (column + 1) * count / columns;
    if (begin == end) continue;
    std::size_t lowest = begin, highest = begin;
    std::optional<std::size_t> gap;
    for (auto i = begin; i < end; ++i) {
      if (!std::isfinite(series.values[i])) gap = i;
      if (!(series.values[i] >= series.values[lowest])) lowest = i;
      if (!(series.values[i] <= series.values[highest])) highest = i;
    }
    std::vector<std::size_t> some = {begin, lowest, highest, end - 1};
    if (gap) some.push_back(*gap);
    std::ranges::sort(some);
    drawn.insert(drawn.end(), some.begin(), std::unique(some.begin(), some.end()));
  }
  return drawn;
}

std::string path_of(const Series& series, const Frame& frame, const Range& x, const Range& y) {
  std::string path;
  bool pen_down = false;
  for (const auto i : drawn_points(series)) {
    if (!std::isfinite(series.values[i])) {
      pen_down = false;
      continue;
    }
    const double px = frame.x(x.at(static_cast<double>(series.steps[i])));
    const double py = frame.y(std::clamp(y.at(series.values[i]), -0.02, 1.02));
    path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", px, py);
    if (!pen_down) path += fmt::format("l0.1 0");  // a lone point is a dot
    pen_down = true;
  }
  return path;
}

// Dots, and their labels, each on the first side of its dot where none stands yet.
std::string labelled_dots(const Curve& curve, std::size_t color, const Frame& frame, const Range& x, const Range& y) {
  constexpr std::pair<double, double> sides[] = {{0, -8}, {0, 17}, {18, 4}, {-18, 4}};
  std::string dots, texts;
  std::vector<std::pair<double, double>> taken;
  for (std::size_t i = 0; i < curve.labels.size(); ++i) {
    if (!std::isfinite(curve.points.values[i])) continue;
    const double px = frame.x(x.at(static_cast<double>(curve.points.steps[i])));
    const double py = frame.y(std::clamp(y.at(curve.points.values[i]), -0.02, 1.02));
    dots += fmt::format("M{:.1f} {:.1f}l0.1 0", px, py);
    const auto is_free = [&](const std::pair<double, double>& side) {
      return std::ranges::none_of(taken, [&](const auto& other) {
        return std::abs(other.first - px - side.first) < 2 * line && std::abs(other.second - py - side.second) < line;
      });
    };
    const auto* side = std::ranges::find_if(sides, is_free);
    if (side == std::end(sides)) side = std::begin(sides);
    taken.emplace_back(px + side->first, py + side->second);
    texts += fmt::format("<text class=\"x\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", taken.back().first,
                         taken.back().second, escape(curve.labels[i]));
  }
  return fmt::format("<path class=\"curve c{} dots\" d=\"{}\"/>\n", color, dots) + texts;
}

// The first height from `wanted` down that leaves a line to all others. From the upmost to the lowest, so that each is
// passed once, whatever rounding does to a distance of just a line.
double free_place(double wanted, const std::set<double>& taken) {
  for (const double other : taken)
    if (std::abs(other - wanted) < line) wanted = other + line;
  return wanted;
}

double last_of(const Series& series) {
  for (auto i = series.values.size(); i-- > 0;)
    if (std::isfinite(series.values[i])) return series.values[i];
  return std::nan("");
}

}  // namespace

std::string short_number(double value) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  if (size >= 1e15) return fmt::format("{:.2g}", value);
  if (size >= 10000) return format_count(value);
  if (size >= 100) return fmt::format("{:.0f}", value);
  if (size == 0) return "0";
  if (size < 1e-3) return fmt::format("{:.2g}", value);
  return fmt::format("{:.4g}", value);
}

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : valid_utf8(text)) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f)
          escaped += "\uFFFD";
        else
          escaped += c;
    }
  }
  return escaped;
}

std::string render_plot(const Plot& plot, PlotSize size) {
  const auto y = range_of(plot);
  if (!y) return "<p class=\"none\">no numbers yet</p>";
  const auto x = steps_of(plot);
  const auto frame = frame_of(plot, size);
  std::string svg =
      fmt::format("<svg class=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
                  size == PlotSize::wide ? "wide" : "half", frame.width, frame.height, escape(plot.title));
  for (const double tick : ticks_of(*y, 4)) {
    const double py = frame.y(y->at(tick));
    svg += fmt::format("<path class=\"grid\" d=\"M{} {:.1f}H{}\"/><text class=\"y\" x=\"{}\" y=\"{:.1f}\">{}</text>\n",
                       left, py, frame.width - frame.right, left - 8, py + 4, short_number(tick));
  }
  for (const double tick : ticks_of(x, 5)) {
    if (plot.x_unit == 1 && tick != std::floor(tick)) continue;
    const auto label = plot.x_unit != 1 ? short_number(tick * plot.x_unit)
                       : tick < 10000   ? fmt::format("{:.0f}", tick)
                                        : format_count(tick);
    const double half_width = 4.2 * static_cast<double>(label.size());  // in the larger letters of a small screen
    svg += fmt::format("<text class=\"x\" x=\"{:.1f}\" y=\"{}\">{}</text>\n",
                       std::min(frame.x(x.at(tick)), frame.width - half_width), frame.height - 8, label);
  }
  std::set<double> labels;  // where the curves' names stand, so that they do not cover each other
  std::size_t i = 0;        // the colour; a faint curve has that of the next
  for (const auto& curve : plot.curves) {
    svg += fmt::format("<path class=\"curve c{}{}\" d=\"{}\"/>\n", i % 6, curve.is_faint ? " faint" : "",
                       path_of(curve.points, frame, x, *y));
    if (!curve.labels.empty()) svg += labelled_dots(curve, i % 6, frame, x, *y);
    if (curve.is_faint) continue;
    const auto color = i++ % 6;
    if (curve.name.empty() || curve.points.values.empty()) continue;
    const double py = free_place(frame.y(std::clamp(y->at(last_of(curve.points)), 0.0, 1.0)) + 4, labels);
    labels.insert(py);
    svg += fmt::format("<text class=\"name c{}\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", color,
                       frame.width - frame.right + 6, py, escape(curve.name));
  }
  return svg + "</svg>";
}

}  // namespace millrace
