#include <fmt/format.h>

#include <algorithm>

#include "millrace/image/encode_jpeg.h"
#include "millrace/report/document.h"
#include "plot.h"

namespace millrace {
namespace {

constexpr std::string_view style = R"css(
:root{--paper:#fdfdfb;--ink:#1c1f23;--soft:#636a73;--rule:#e3e2dc;--c0:#1f6fb2;--c1:#b54c20;--c2:#2f7d45;--c3:#8256a8;--c4:#856608;--c5:#2f757b}
@media(prefers-color-scheme:dark){:root{--paper:#16181b;--ink:#e6e4df;--soft:#9aa0a8;--rule:#2e3237;--c0:#6db3f2;--c1:#ee8f63;--c2:#7cc98f;--c3:#bd96e0;--c4:#dcbc58;--c5:#83cdd3}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.25rem 4rem;max-width:60rem;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:0;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2.6rem 0 .6rem;padding-top:.8rem;border-top:1px solid var(--rule)}
h3{font-size:.95rem;font-weight:600;margin:1.4rem 0 .2rem}
h3 small{font-weight:400;color:var(--soft)}
.subtitle,.none,figcaption{color:var(--soft)}
.subtitle{margin:.3rem 0 0}
.scroll{overflow-x:auto;margin:.8rem 0 1.6rem}
.pairs{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(24rem,100%),1fr));gap:0 2rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
td,th{padding:.3rem 1.4rem .3rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}
td:nth-child(2):last-child{overflow-wrap:anywhere}
th{font-weight:600;color:var(--soft)}
td:first-child{color:var(--soft);min-width:8.5rem}
svg{display:block;width:100%;height:auto}
.narrow{display:none}
svg text{font-size:11px;fill:var(--soft)}
.y{text-anchor:end}.x{text-anchor:middle}
.grid{stroke:var(--rule);fill:none}
.curve{fill:none;stroke-width:1.5;stroke-linejoin:round;stroke-linecap:round}
.curve.faint{opacity:.3;stroke-width:1}
.curve.dots{stroke-width:6}
.curve.c0{stroke:var(--c0)}.curve.c1{stroke:var(--c1)}.curve.c2{stroke:var(--c2)}.curve.c3{stroke:var(--c3)}.curve.c4{stroke:var(--c4)}.curve.c5{stroke:var(--c5)}
svg .name{font-weight:600}
svg .name.c0{fill:var(--c0)}svg .name.c1{fill:var(--c1)}svg .name.c2{fill:var(--c2)}svg .name.c3{fill:var(--c3)}svg .name.c4{fill:var(--c4)}svg .name.c5{fill:var(--c5)}
.bars{margin:.6rem 0 1.4rem;display:grid;gap:.55rem}
.bars span{display:flex;justify-content:space-between;gap:1rem;font-size:.9rem;font-variant-numeric:tabular-nums}
.bars b{font-weight:inherit;white-space:nowrap}
.bars i{display:block;height:.5rem;border-radius:2px;background:var(--soft);opacity:.45}
.bars .own{font-weight:600}
.bars .own i{background:var(--c0);opacity:1}
code{font:.92em ui-monospace,"DejaVu Sans Mono",monospace}
.pictures{display:flex;flex-wrap:wrap;gap:1rem;margin:1rem 0}
figure{margin:0;max-width:100%}
img{display:block;max-width:100%;height:auto;border-radius:3px;image-rendering:auto}
@media(max-width:34rem){body{padding:1.2rem .9rem 3rem}svg text{font-size:13px}.broad{display:none}.narrow{display:block}td,th{padding-right:.9rem}td:first-child{min-width:6rem}}
)css";

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](std::size_t k) {
      return i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u;
    };
    const unsigned bits = byte(0) << 16 | byte(1) << 8 | byte(2);
    for (std::size_t k = 0; k < 4; ++k) text += i + k > bytes.size() ? '=' : digits[bits >> (18 - 6 * k) & 63];
  }
  return text;
}

struct HtmlBlock {
  std::string& page;

  void operator()(const Paragraph& paragraph) const { page += fmt::format("<p>{}</p>\n", escape(paragraph.text)); }

  void operator()(const ReportTable& table) const {
    page += "<div class=\"scroll\"><table>\n";
    if (!table.header.empty()) add_row(table.header, "th", /*name_is_code=*/false);
    for (const auto& row : table.rows) add_row(row, "td", table.names_are_code);
    page += "</table></div>\n";
  }

  // Twice: the size that a small screen has no room for, and one that it has.
  void operator()(const Plot& plot) const {
    add_title(plot.title, plot.unit);
    page += fmt::format("<div class=\"broad\">{}</div>\n<div class=\"narrow\">{}</div>\n",
                        render_plot(plot, PlotSize::wide), render_plot(plot, PlotSize::half));
  }

  void add_half(const Plot& plot) const {
    add_title(plot.title, plot.unit);
    page += render_plot(plot, PlotSize::half) + "\n";
  }

  // A bar under its name and number, which have room on any screen.
  void operator()(const Bars& bars) const {
    double longest = 0;
    for (const auto& bar : bars.bars) longest = std::max(longest, bar.value);
    add_title(bars.title, bars.unit);
    page += "<div class=\"bars\">\n";
    for (const auto& bar : bars.bars)
      page += fmt::format("<div class=\"{}\"><span>{}<b>{}</b></span><i style=\"width:{:.1f}%\"></i></div>\n",
                          bar.stands_out ? "own" : "other", escape(bar.name), fmt::format("{:.4g}", bar.value),
                          100 * bar.value / longest);
    page += "</div>\n";
  }

  void operator()(const Picture& picture) const {
    page += fmt::format(
        "<figure><img alt=\"picture\" width=\"{}\" height=\"{}\" "
        "src=\"data:image/jpeg;base64,{}\"/><figcaption>{}</figcaption></figure>\n",
        picture.image.width, picture.image.height, base64(encode_jpeg(picture.image, 85)), escape(picture.caption));
  }

 private:
  void add_title(const std::string& title, const std::string& unit) const {
    page += fmt::format("<h3>{}{}</h3>\n", escape(title),
                        unit.empty() ? "" : fmt::format(" <small>{}</small>", escape(unit)));
  }

  void add_row(const std::vector<std::string>& cells, const char* tag, bool name_is_code) const {
    page += "<tr>";
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const bool is_code = name_is_code && i == 0;
      page +=
          fmt::format("<{0}>{2}{1}{3}</{0}>", tag, escape(cells[i]), is_code ? "<code>" : "", is_code ? "</code>" : "");
    }
    page += "</tr>\n";
  }
};

// A section's first plot is wide; those behind it stand in pairs where there is room, and pictures in rows.
void add_blocks(std::string& page, const std::vector<Block>& blocks) {
  std::string_view group;  // that is open
  const auto enter = [&](std::string_view wanted) {
    if (wanted == group) return;
    if (!group.empty()) page += "</div>\n";
    if (!wanted.empty()) page += fmt::format("<div class=\"{}\">\n", wanted);
    group = wanted;
  };
  bool has_plot = false;
  for (const auto& block : blocks) {
    const auto* plot = std::get_if<Plot>(&block);
    enter(std::holds_alternative<Picture>(block) ? "pictures" : plot && has_plot ? "pairs" : "");
    if (group == "pairs") {
      page += "<div>";
      HtmlBlock{page}.add_half(*plot);
      page += "</div>\n";
    } else {
      std::visit(HtmlBlock{page}, block);
    }
    has_plot = has_plot || plot;
  }
  enter("");
}

}  // namespace

std::string render_html(const Document& document) {
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"/><meta name=\"color-scheme\" content=\"light dark\"/>"
      "<title>{0}</title><style>{1}</style></head>\n<body>\n<h1>{0}</h1>\n<p class=\"subtitle\">{2}</p>\n",
      escape(document.title), style, escape(document.subtitle));
  for (const auto& section : document.sections) {
    page += fmt::format("<h2>{}</h2>\n", escape(section.title));
    add_blocks(page, section.blocks);
  }
  return page + "</body></html>\n";
}

}  // namespace millrace
