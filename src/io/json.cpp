#include "millrace/io/json.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "millrace/core/error.h"

namespace millrace {

namespace {

constexpr int max_depth = 64;
constexpr std::uint64_t max_file_bytes = 256 << 20;

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view where) {
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> open_objects;  // the keys seen in each object that is still open
  const auto check = [&](int depth, Event event, nlohmann::json& parsed) {
    if (depth > max_depth) fail(Exit::io, "{}: more than {} levels of JSON", where, max_depth);
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key && !open_objects.back().insert(parsed.get<std::string>()).second) {
      fail(Exit::io, "{}: the key '{}' occurs twice", where, parsed.get<std::string>());
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, check);
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
