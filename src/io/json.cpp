#include "millrace/io/json.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/text.h"

namespace millrace {

namespace {

constexpr int max_depth = 64;
constexpr std::uint64_t max_file_bytes = 256 << 20;

// The UTF-16 unit that `text` begins with as \\uXXXX; 0 when it begins otherwise.
unsigned leading_unit(std::string_view text) {
  constexpr std::size_t bytes = 6;
  unsigned unit = 0;
  if (text.size() < bytes || !text.starts_with("\\u")) return 0;
  const auto [end, error] = std::from_chars(text.data() + 2, text.data() + bytes, unit, 16);
  return error == std::errc() && end == text.data() + bytes ? unit : 0;
}

bool is_high_surrogate(unsigned unit) {
  return 0xD800 <= unit && unit < 0xDC00;
}

bool is_low_surrogate(unsigned unit) {
  return 0xDC00 <= unit && unit < 0xE000;
}

// What stands for the backslash and what belongs to it at the front of `text`, and how many bytes it stands for.
std::pair<std::string_view, std::size_t> escape_at(std::string_view text) {
  constexpr std::size_t unit_bytes = 6;
  const unsigned unit = leading_unit(text);
  const bool begins_pair = is_high_surrogate(unit) && is_low_surrogate(leading_unit(text.substr(unit_bytes)));
  if (begins_pair) return {text.substr(0, 2 * unit_bytes), 2 * unit_bytes};
  if (is_high_surrogate(unit) || is_low_surrogate(unit)) return {"\\ufffd", unit_bytes};
  const std::size_t bytes = std::min<std::size_t>(2, text.size());
  return {text.substr(0, bytes), bytes};
}

// Of JSON, part of which repeats a key: Error(io) names the first.
void refuse_repeated_key(std::string_view text, std::string_view where) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> open_objects;  // the keys seen in each object that is still open
  std::ignore = nlohmann::json::parse(text, [&](int, Event event, nlohmann::json& parsed) {
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key && !open_objects.back().insert(parsed.get<std::string>()).second)
      fail(Exit::io, "{}: the key '{}' occurs twice", where, parsed.get<std::string>());
    return true;
  });
  ensure(false, "a repeated key is repeated");
}

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view where) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::size_t> open_objects;  // the keys seen in each object that is still open
  const auto check = [&](int depth, Event event, nlohmann::json& parsed) {
    if (depth > max_depth) fail(Exit::io, "{}: more than {} levels of JSON", where, max_depth);
    if (event == Event::object_start) open_objects.push_back(0);
    if (event == Event::key) ++open_objects.back();
    if (event == Event::object_end) {
      // A vocabulary has 50,000 keys: they are counted here, and looked at one by one only where some are missing.
      if (open_objects.back() != parsed.size()) refuse_repeated_key(text, where);
      open_objects.pop_back();
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, check);
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::io, "{} is not valid JSON: {}", where, error.what());
  }
}

std::string from_python_json(std::string_view text) {
  static constexpr std::pair<std::string_view, std::string_view> words[] = {
      {"NaN", "null"}, {"-Infinity", "-1.7976931348623157e308"}, {"Infinity", "1.7976931348623157e308"}};
  std::string out;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    std::string_view copied = text.substr(i, 1);
    std::size_t used = 1;
    if (in_string) {
      if (text[i] == '\\') std::tie(copied, used) = escape_at(text.substr(i));
      in_string = text[i] != '"';
    } else if (text[i] == '"') {
      in_string = true;
    } else {
      for (const auto& [word, replacement] : words) {
        if (!text.substr(i).starts_with(word)) continue;
        copied = replacement;
        used = word.size();
        break;
      }
    }
    out += copied;
    i += used;
  }
  return valid_utf8(out);
}

nlohmann::json parse_python_json(std::string_view text, std::string_view where) {
  const auto check = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > max_depth) fail(Exit::io, "{}: more than {} levels of JSON", where, max_depth);
    return true;
  };
  nlohmann::json strict = nlohmann::json::parse(text, check, /*allow_exceptions=*/false);
  if (!strict.is_discarded()) return strict;
  try {
    return nlohmann::json::parse(from_python_json(text), check);
  } catch (const nlohmann::json::exception& error) {
    fail(Exit::io, "{} is not valid JSON: {}", where, error.what());
  }
}

nlohmann::json read_json(const fs::path& path) {
  std::error_code unknown;  // reading says why
  if (const auto bytes = fs::file_size(path, unknown); !unknown && bytes > max_file_bytes)
    fail(Exit::io, "{}: {} bytes of JSON; {} are allowed", path.string(), bytes, max_file_bytes);
  return parse_json(read_file(path), path.string());
}

nlohmann::json read_json_object(const fs::path& path) {
  nlohmann::json json = read_json(path);
  if (!json.is_object()) fail(Exit::io, "{} does not hold a JSON object", path.string());
  return json;
}

nlohmann::json optional_to_json(const std::optional<std::uint64_t>& number) {
  return number ? nlohmann::json(*number) : nlohmann::json(nullptr);
}

std::optional<std::uint64_t> optional_from_json(const nlohmann::json& json) {
  return json.is_null() ? std::nullopt : std::optional(json.get<std::uint64_t>());
}

std::string format_json(const nlohmann::json& json) {
  return json.dump(2, ' ', true) + "\n";
}

}  // namespace millrace
