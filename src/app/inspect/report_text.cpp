#include "inspect/report_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "millrace/core/json_text.h"
#include "millrace/core/units.h"
#include "millrace/core/visible.h"

namespace millrace {
namespace {

using nlohmann::json;
using Columns = std::vector<std::string>;

bool is_list_of_objects(const json& value) {
  return value.is_array() && !value.empty() && std::ranges::all_of(value, [](const json& e) { return e.is_object(); });
}

bool is_histogram(const json& value) {
  return is_list_of_objects(value) && value[0].contains("from");
}

bool is_map_of_objects(const json& value) {
  return value.is_object() && !value.empty() && std::ranges::all_of(value, [](const json& e) { return e.is_object(); });
}

std::string cell(const json& value);

// "256 x 256" for numbers, "a, b" for words, "3 files, 1.2 MiB" for files.
std::string join(const json& list) {
  if (is_list_of_objects(list)) {
    std::uint64_t bytes = 0;
    for (const auto& entry : list) bytes += entry.value("bytes", std::uint64_t{0});
    return fmt::format("{}, {}", list.size(), format_bytes(bytes));
  }
  std::vector<std::string> words;
  for (const auto& entry : list) words.push_back(cell(entry));
  const bool numbers = std::ranges::all_of(list, [](const json& entry) { return entry.is_number(); });
  return fmt::format("{}", fmt::join(words, numbers ? " x " : ", "));
}

// 3168324 -> "3,168,324"
std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::ptrdiff_t first = number < 0;
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > first; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string cell(const json& value) {
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_integer()) return grouped(value.get<std::int64_t>());
  if (value.is_string()) return visible_line(value.get<std::string>());
  if (value.is_array()) return join(value);
  if (!value.is_object()) return dump_any(value);
  std::vector<std::string> words;
  for (const auto& [name, entry] : value.items()) words.push_back(visible_line(name) + " " + cell(entry));
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string cell(const std::string& key, const json& value) {
  return key == "bytes" && value.is_number() ? format_bytes(value.get<std::uint64_t>()) : cell(value);
}

std::string heading(std::string key) {
  std::ranges::replace(key, '_', ' ');
  return visible_line(key == "bytes" ? "size" : key);
}

// What names a row comes first, then what a reader looks for; the rest as JSON has it.
constexpr std::array<std::string_view, 8> leading = {"path",    "name", "class",      "step",
                                                     "samples", "rows", "parameters", "bytes"};

// What a table leaves to --json: digests, and what is told elsewhere.
bool is_left_out(std::string_view key) {
  return key == "xxh3_128" || key == "problems" || key == "kind" || key == "files";
}

Columns columns_of(const json& rows) {
  Columns columns;
  for (const auto& row : rows)
    for (const auto& [key, value] : row.items())
      if (!is_left_out(key) && std::ranges::find(columns, key) == columns.end()) columns.push_back(key);
  const auto place = [](const std::string& key) { return std::ranges::find(leading, key) - leading.begin(); };
  std::ranges::stable_sort(columns, {}, place);
  return columns;
}

// Columns as wide as their widest cell, numbers to the right; `names` of rows or nothing.
std::string table(const json& rows, const std::vector<std::string>& names) {
  const auto columns = columns_of(rows);
  std::vector<std::vector<std::string>> lines(1);
  std::vector<bool> is_number;
  if (!names.empty()) lines[0].emplace_back(), is_number.push_back(false);
  for (const auto& column : columns) {
    lines[0].push_back(heading(column));
    is_number.push_back(std::ranges::all_of(
        rows, [&](const json& row) { return !row.contains(column) || row.at(column).is_number(); }));
  }
  std::size_t index = 0;
  for (const auto& row : rows) {
    auto& line = lines.emplace_back();
    if (!names.empty()) line.push_back(visible_line(names[index]));
    for (const auto& column : columns) line.push_back(row.contains(column) ? cell(column, row.at(column)) : "");
    ++index;
  }
  std::string text;
  for (const auto& line : lines) {
    std::string shown = "   ";
    for (std::size_t i = 0; i < line.size(); ++i) {
      std::size_t width = 0;
      for (const auto& other : lines) width = std::max(width, other[i].size());
      shown += is_number[i] ? fmt::format(" {:>{}} ", line[i], width) : fmt::format(" {:<{}} ", line[i], width);
    }
    text += shown.substr(0, shown.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

// A line per range, with a bar as long as its share of the fullest one.
std::string histogram(const json& ranges) {
  constexpr std::int64_t widest = 40;
  std::int64_t most = 1;
  for (const auto& range : ranges) most = std::max(most, range.at("images").get<std::int64_t>());
  std::string text;
  for (const auto& range : ranges) {
    const auto images = range.at("images").get<std::int64_t>();
    text += fmt::format("      {:>5} to {:<5} {:>8} {}\n", range.at("from").get<int>(), range.at("to").get<int>(),
                        images, std::string(static_cast<std::size_t>((images * widest + most - 1) / most), '#'));
  }
  return text;
}

// `are_ours`: the names are the report's own; those of fields are typed as they stand.
std::string name_and_value(const json& map, bool are_ours) {
  const auto heading = [&](const std::string& name) { return are_ours ? millrace::heading(name) : visible_line(name); };
  const auto cell = [&](const std::string& name, const json& value) {
    return are_ours ? millrace::cell(name, value) : millrace::cell(value);
  };
  std::size_t width = 0;
  for (const auto& [name, value] : map.items()) width = std::max(width, heading(name).size());
  std::string text;
  for (const auto& [name, value] : map.items()) {
    if (is_histogram(value)) {
      text += fmt::format("    {}\n{}", heading(name), histogram(value));
    } else {
      text += fmt::format("    {:<{}}  {}\n", heading(name), width, cell(name, value));
    }
  }
  return text;
}

std::string section(const std::string& key, const json& value) {
  if (is_list_of_objects(value)) return table(value, {});
  if (is_map_of_objects(value)) {
    std::vector<std::string> names;
    json rows = json::array();
    for (const auto& [name, row] : value.items()) names.push_back(name), rows.push_back(row);
    return table(rows, names);
  }
  if (value.is_object()) return name_and_value(value, key != "fields" && key != "types");
  std::string text;
  for (const auto& entry : value) text += "    " + cell(entry) + "\n";
  return text;
}

// A shape, such as [4, 8, 8].
bool is_shape(const json& value) {
  return value.is_array() && std::ranges::all_of(value, [](const json& side) { return side.is_number(); });
}

}  // namespace

std::string report_text(const std::string& path, const json& report) {
  std::string text = fmt::format("{}: {}\n", visible_line(path), cell(report.value("kind", json("unknown"))));
  std::string sections;
  for (const auto& [key, value] : report.items()) {
    if (key == "problems" || key == "kind" || (value.is_structured() && value.empty())) continue;
    if (value.is_structured() && !is_shape(value)) {
      sections += "  " + heading(key) + "\n" + section(key, value);
    } else {
      text += fmt::format("  {:<14} {}\n", heading(key), cell(key, value));
    }
  }
  text += sections;
  for (const auto& problem : report.value("problems", json::array()))
    text += fmt::format("  PROBLEM        {}\n", cell(problem));
  return text;
}

}  // namespace millrace
