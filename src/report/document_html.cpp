#include <fmt/format.h>

#include "millrace/image/encode_jpeg.h"
#include "millrace/report/document.h"
#include "plot.h"

namespace millrace {
namespace {

constexpr std::string_view style = R"css(
:root{--paper:#fdfdfb;--ink:#1c1f23;--soft:#636a73;--rule:#e3e2dc;--c0:#1f6fb2;--c1:#c4572b;--c2:#3c8a4f;--c3:#8256a8;--c4:#a8861d;--c5:#4a8f95}
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
svg text{font-size:11px;fill:var(--soft)}
.y{text-anchor:end}.x{text-anchor:middle}
.grid{stroke:var(--rule);fill:none}
.curve{fill:none;stroke-width:1.5;stroke-linejoin:round;stroke-linecap:round}
.curve.faint{opacity:.3;stroke-width:1}
.curve.c0{stroke:var(--c0)}.curve.c1{stroke:var(--c1)}.curve.c2{stroke:var(--c2)}.curve.c3{stroke:var(--c3)}.curve.c4{stroke:var(--c4)}.curve.c5{stroke:var(--c5)}
svg .name{font-weight:600}
svg .name.c0{fill:var(--c0)}svg .name.c1{fill:var(--c1)}svg .name.c2{fill:var(--c2)}svg .name.c3{fill:var(--c3)}svg .name.c4{fill:var(--c4)}svg .name.c5{fill:var(--c5)}
figure{margin:1rem 0}
img{max-width:100%;border-radius:3px;image-rendering:auto}
@media(max-width:34rem){body{padding:1.2rem .9rem 3rem}svg.wide text{font-size:19px}td,th{padding-right:.9rem}td:first-child{min-width:6rem}}
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

  void operator()(const Table& table) const {
    page += "<div class=\"scroll\"><table>\n";
    if (!table.header.empty()) add_row(table.header, "th");
    for (const auto& row : table.rows) add_row(row, "td");
    page += "</table></div>\n";
  }

  void operator()(const Plot& plot) const { add(plot, PlotSize::wide); }

  void add(const Plot& plot, PlotSize size) const {
    page += fmt::format("<h3>{}{}</h3>\n{}\n", escape(plot.title),
                        plot.unit.empty() ? "" : fmt::format(" <small>{}</small>", escape(plot.unit)),
                        render_plot(plot, size));
  }

  void operator()(const Picture& picture) const {
    page += fmt::format(
        "<figure><img alt=\"{0}\" width=\"{1}\" height=\"{2}\" "
        "src=\"data:image/jpeg;base64,{3}\"/><figcaption>{0}</figcaption></figure>\n",
        escape(picture.caption), picture.image.width, picture.image.height, base64(encode_jpeg(picture.image, 85)));
  }

 private:
  void add_row(const std::vector<std::string>& cells, const char* tag) const {
    page += "<tr>";
    for (const auto& cell : cells) page += fmt::format("<{0}>{1}</{0}>", tag, escape(cell));
    page += "</tr>\n";
  }
};

// A section's first plot is wide, those behind it stand in pairs where there is room.
void add_blocks(std::string& page, const std::vector<Block>& blocks) {
  bool has_plot = false, in_pairs = false;
  for (const auto& block : blocks) {
    const auto* plot = std::get_if<Plot>(&block);
    if (in_pairs != (plot && has_plot)) page += in_pairs ? "</div>\n" : "<div class=\"pairs\">\n";
    in_pairs = plot && has_plot;
    if (in_pairs) {
      page += "<div>";
      HtmlBlock{page}.add(*plot, PlotSize::half);
      page += "</div>\n";
    } else {
      std::visit(HtmlBlock{page}, block);
    }
    has_plot = has_plot || plot;
  }
  if (in_pairs) page += "</div>\n";
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
