#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string_view>

#include "millrace/report/document.h"
#include "plot.h"

namespace millrace {
namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c));
}

// Markdown lets HTML through and reads these characters, so they become references or get a backslash; an underscore
// within a word is none of its signs.
std::string plain(std::string_view text) {
  const auto escaped = escape(text);
  std::string result;
  for (std::size_t i = 0; i < escaped.size(); ++i) {
    const char c = escaped[i];
    if (c == '\n') {
      result += ' ';
      continue;
    }
    const bool is_in_word =
        c == '_' && i > 0 && i + 1 < escaped.size() && is_word(escaped[i - 1]) && is_word(escaped[i + 1]);
    if (std::string_view("\\`*_[]|").find(c) != std::string_view::npos && !is_in_word) result += '\\';
    result += c;
  }
  return result;
}

// As a code span; what it could not hold as it is stays text.
std::string code(const std::string& text) {
  const bool fits = !text.empty() && std::ranges::all_of(text, [](char c) {
    return is_word(c) || std::string_view("_.-:/").find(c) != std::string_view::npos;
  });
  return fits ? "`" + text + "`" : plain(text);
}

struct MarkdownBlock {
  std::string& page;

  void operator()(const Paragraph& paragraph) const { page += plain(paragraph.text) + "\n\n"; }

  void operator()(const ReportTable& table) const {
    std::size_t columns = table.header.size();
    for (const auto& row : table.rows) columns = std::max(columns, row.size());
    add_row(table.header, columns);
    page += "|";
    for (std::size_t i = 0; i < columns; ++i) page += "---|";
    page += "\n";
    for (const auto& row : table.rows) add_row(row, columns, table.names_are_code);
    page += "\n";
  }

  // Its numbers: first, lowest, highest, last.
  void operator()(const Plot& plot) const {
    ReportTable table{
        {plot.unit.empty() ? plot.title : plot.title + ", " + plot.unit, "first", "lowest", "highest", "last"}, {}};
    for (const auto& curve : plot.curves) {
      std::vector<double> values;
      std::ranges::copy_if(curve.points.values, std::back_inserter(values), [](double v) { return std::isfinite(v); });
      if (curve.is_faint || values.empty()) continue;
      table.rows.push_back({curve.name, short_number(values.front()), short_number(std::ranges::min(values)),
                            short_number(std::ranges::max(values)), short_number(values.back())});
    }
    if (!table.rows.empty()) (*this)(table);
  }

  void operator()(const Bars& bars) const {
    ReportTable table{{bars.title, bars.unit}, {}};
    for (const auto& bar : bars.bars) table.rows.push_back({bar.name, fmt::format("{:.4g}", bar.value)});
    (*this)(table);
  }

  void operator()(const Picture& picture) const { page += plain(picture.caption) + "\n\n"; }

 private:
  void add_row(const std::vector<std::string>& cells, std::size_t columns, bool name_is_code = false) const {
    page += "|";
    for (std::size_t i = 0; i < columns; ++i)
      page += " " + (i >= cells.size() ? "" : name_is_code && i == 0 ? code(cells[i]) : plain(cells[i])) + " |";
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
