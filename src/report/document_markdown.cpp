#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "millrace/report/document.h"
#include "plot.h"

namespace millrace {
namespace {

// Markdown lets HTML through and reads these characters, so they become references or get a backslash.
std::string plain(std::string_view text) {
  std::string escaped;
  for (const char c : escape(text)) {
    if (c == '\n') {
      escaped += ' ';
      continue;
    }
    if (std::string_view("\\`*_[]|#").find(c) != std::string_view::npos && c != '#') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

struct MarkdownBlock {
  std::string& page;

  void operator()(const Paragraph& paragraph) const { page += plain(paragraph.text) + "\n\n"; }

  void operator()(const Table& table) const {
    std::size_t columns = table.header.size();
    for (const auto& row : table.rows) columns = std::max(columns, row.size());
    add_row(table.header, columns);
    page += "|";
    for (std::size_t i = 0; i < columns; ++i) page += "---|";
    page += "\n";
    for (const auto& row : table.rows) add_row(row, columns);
    page += "\n";
  }

  // Its numbers: first, lowest, highest, last.
  void operator()(const Plot& plot) const {
    Table table{{plot.unit.empty() ? plot.title : plot.title + ", " + plot.unit, "first", "lowest", "highest", "last"},
                {}};
    for (const auto& curve : plot.curves) {
      std::vector<double> values;
      std::ranges::copy_if(curve.points.values, std::back_inserter(values), [](double v) { return std::isfinite(v); });
      if (curve.is_faint || values.empty()) continue;
      table.rows.push_back({curve.name, short_number(values.front()), short_number(std::ranges::min(values)),
                            short_number(std::ranges::max(values)), short_number(values.back())});
    }
    if (!table.rows.empty()) (*this)(table);
  }

  void operator()(const Picture& picture) const { page += plain(picture.caption) + "\n\n"; }

 private:
  void add_row(const std::vector<std::string>& cells, std::size_t columns) const {
    page += "|";
    for (std::size_t i = 0; i < columns; ++i) page += " " + (i < cells.size() ? plain(cells[i]) : "") + " |";
    page += "\n";
  }
};

}  // namespace

std::string render_markdown(const Document& document) {
  std::string page = fmt::format("# {}\n\n{}\n\n", plain(document.title), plain(document.subtitle));
  for (const auto& section : document.sections) {
    page += fmt::format("## {}\n\n", plain(section.title));
    for (const auto& block : section.blocks) std::visit(MarkdownBlock{page}, block);
  }
  return page;
}

}  // namespace millrace
