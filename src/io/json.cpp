#include "millrace/io/json.h"

#include <algorithm>
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

constexpr std::size_t max_depth = 64;
constexpr std::uint64_t max_file_bytes = 256 << 20;

// The UTF-16 unit that `text` begins with as \\uXXXX; 0 when it begins otherwise.
unsigned leading_unit(std::string_view text) {
  constexpr std::size_t bytes = 6;
  if (text.size() < bytes || !text.starts_with("\\u")) return 0;
  return parse_number<unsigned>(text.substr(2, bytes - 2), 16).value_or(0);
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

// Passes through JSON without building it: counts its keys, and refuses what is nested too deep. (The parser with a
// callback does this too, but looks through all elements of a list behind each: quadratic.)
class Survey : public nlohmann::json_sax<nlohmann::json> {
 public:
  // `unique`: an object that repeats a key is refused too.
  Survey(std::string_view where, bool unique) : where_(where), unique_(unique) {}

  std::size_t keys() const { return keys_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_array() override { return close(); }
  // The parser that builds it says what is wrong.
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

  bool key(string_t& name) override {
    ++keys_;
    if (unique_ && !seen_.back().insert(name).second) fail(Exit::io, "{}: the key '{}' occurs twice", where_, name);
    return true;
  }

 private:
  bool open() {
    seen_.emplace_back();
    if (seen_.size() > max_depth) fail(Exit::io, "{}: more than {} levels of JSON", where_, max_depth);
    return true;
  }
  bool close() {
    seen_.pop_back();
    return true;
  }

  std::string_view where_;
  bool unique_;
  std::size_t keys_ = 0;
  std::vector<std::set<std::string>> seen_;  // of each object and list that is still open
};

std::size_t survey(std::string_view text, std::string_view where, bool unique = false) {
  Survey survey(where, unique);
  nlohmann::json::sax_parse(text, &survey);
  return survey.keys();
}

std::size_t count_keys(const nlohmann::json& json) {
  std::size_t keys = json.is_object() ? json.size() : 0;
  if (json.is_structured())
    for (const auto& value : json) keys += count_keys(value);
  return keys;
}

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view where) {
  const std::size_t keys = survey(text, where);
  try {
    auto json = nlohmann::json::parse(text);
    // A vocabulary has 50,000 keys: they are looked at one by one only where some are missing.
    if (count_keys(json) != keys) survey(text, where, /*unique=*/true);
    return json;
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
  survey(text, where);
  nlohmann::json strict = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!strict.is_discarded()) return strict;
  const std::string lenient = from_python_json(text);
  survey(lenient, where);
  try {
    return nlohmann::json::parse(lenient);
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
