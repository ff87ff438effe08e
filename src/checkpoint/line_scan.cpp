#include "millrace/checkpoint/line_scan.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

namespace millrace {
namespace {

// Of a line as this program writes them; nothing where it begins otherwise.
std::optional<std::int64_t> step_at_beginning(std::string_view line) {
  constexpr std::string_view key = "{\"step\":";
  if (!line.starts_with(key)) return std::nullopt;
  std::int64_t step = 0;
  const auto digits = line.substr(key.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return error == std::errc() && end != digits.data() + digits.size() && *end == ',' ? std::optional(step)
                                                                                     : std::nullopt;
}

bool is_line_up_to(std::string_view line, std::int64_t last_step) {
  if (!line.ends_with('\n')) return false;                                    // cut short by a crash
  if (step_at_beginning(line).value_or(last_step) > last_step) return false;  // of gigabytes of ids none is parsed
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  const auto step = json.find("step");
  return step == json.end() || !step->is_number() || step->get<double>() <= static_cast<double>(last_step);
}

}  // namespace

std::string read_block(const InputFile& file, std::uint64_t begin, std::uint64_t bytes) {
  std::string block(bytes, '\0');
  block.resize(file.read_at(begin, std::as_writable_bytes(std::span(block))));
  return block;
}

std::uint64_t end_of_lines(const InputFile& file, std::int64_t last_step) {
  std::uint64_t begin = file.size();
  std::string text;  // from `begin` up to the lines that are known to go
  while (true) {
    const auto newline = text.size() < 2 ? text.npos : text.rfind('\n', text.size() - 2);
    if (newline == text.npos && begin > 0) {
      const auto bytes = std::min(line_block, begin);
      begin -= bytes;
      text.insert(0, read_block(file, begin, bytes));
      continue;
    }
    const std::size_t line = newline == text.npos ? 0 : newline + 1;
    if (text.empty() || is_line_up_to(std::string_view(text).substr(line), last_step)) return begin + text.size();
    text.resize(line);
  }
}

nlohmann::json newest_line(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return nullptr;
  const InputFile file(path.string());
  const auto end = end_of_lines(file, std::numeric_limits<std::int64_t>::max());
  const auto begin = end > line_block ? end - line_block : 0;
  const auto lines = read_block(file, begin, end - begin);
  const auto newline = lines.size() < 2 ? lines.npos : lines.rfind('\n', lines.size() - 2);
  const auto last = std::string_view(lines).substr(newline == lines.npos ? 0 : newline + 1);
  auto json = nlohmann::json::parse(last, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : nlohmann::json(nullptr);
}

}  // namespace millrace
