#include "config_reader.h"

#include <algorithm>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/log.h"

namespace millrace {

using nlohmann::json;

bool is_whole(const json& value, std::int64_t least, std::int64_t most) {
  if (!value.is_number_integer()) return false;
  const auto number = value.get<std::int64_t>();
  return least <= number && number <= most;
}

ConfigReader::ConfigReader(const json& source, std::string file) : source_(source), file_(std::move(file)) {
  if (!source_.is_object()) fail(Exit::io, "{}: expected a JSON object", file_);
}

const json* ConfigReader::find(std::string_view key) {
  known_.emplace(key);
  const auto found = source_.find(key);
  return found == source_.end() || found->is_null() ? nullptr : &*found;
}

void ConfigReader::fail_key(std::string_view key, std::string_view why) const {
  const auto found = source_.find(key);
  fail(Exit::io, "{}: {} = {}: {}", file_, key, found == source_.end() ? "(absent)" : found->dump(), why);
}

void ConfigReader::warn_key(std::string_view key, std::string_view what) const {
  log::warning("{}: {} = {}: {}", file_, key, source_.at(std::string(key)).dump(), what);
}

std::int64_t ConfigReader::integer(std::string_view key, std::int64_t fallback, std::int64_t most) {
  const json* value = find(key);
  if (!value) return fallback;
  if (!is_whole(*value, 0, most)) fail_key(key, fmt::format("expected a whole number from 0 to {}", most));
  return value->get<std::int64_t>();
}

std::int64_t ConfigReader::positive(std::string_view key, std::int64_t fallback, std::int64_t most) {
  const json* value = find(key);
  if (!value) return fallback;
  if (!is_whole(*value, 1, most)) fail_key(key, fmt::format("expected a whole number from 1 to {}", most));
  return value->get<std::int64_t>();
}

double ConfigReader::number(std::string_view key, double fallback) {
  const json* value = find(key);
  if (!value) return fallback;
  if (!value->is_number()) fail_key(key, "expected a number");
  return value->get<double>();
}

bool ConfigReader::boolean(std::string_view key, bool fallback) {
  const json* value = find(key);
  if (!value) return fallback && !source_.contains(key);  // what is there and null is false in Python
  if (!value->is_boolean()) fail_key(key, "expected true or false");
  return value->get<bool>();
}

std::string ConfigReader::text(std::string_view key, const std::string& fallback) {
  const json* value = find(key);
  if (!value) return fallback;
  if (!value->is_string()) fail_key(key, "expected a text");
  return value->get<std::string>();
}

nn::Activation ConfigReader::activation(std::string_view key, const std::string& fallback) {
  const auto parsed = nn::try_parse_activation(text(key, fallback));
  if (!parsed) fail_key(key, "this activation is not known here (silu, gelu, quick_gelu, mish, relu)");
  return *parsed;
}

std::vector<std::int64_t> ConfigReader::positives(std::string_view key, std::vector<std::int64_t> fallback,
                                                  std::int64_t most) {
  const json* value = find(key);
  if (!value) return fallback;
  if (!value->is_array() || value->empty() || value->size() > most_levels ||
      !std::ranges::all_of(*value, [&](const json& v) { return is_whole(v, 1, most); })) {
    fail_key(key, fmt::format("expected a list of at most {} whole numbers from 1 to {}", most_levels, most));
  }
  return value->get<std::vector<std::int64_t>>();
}

std::vector<std::string> ConfigReader::texts(std::string_view key, std::vector<std::string> fallback) {
  const json* value = find(key);
  if (!value) return fallback;
  if (!value->is_array() || !std::ranges::all_of(*value, [](const json& v) { return v.is_string(); })) {
    fail_key(key, "expected a list of texts");
  }
  return value->get<std::vector<std::string>>();
}

std::vector<std::int64_t> ConfigReader::positive_per_level(std::string_view key, std::int64_t fallback,
                                                           std::size_t levels, std::int64_t most) {
  const json* value = find(key);
  if (!value || !value->is_array()) return std::vector(levels, positive(key, fallback, most));
  auto values = positives(key, {}, most);
  if (values.size() != levels) fail_key(key, fmt::format("expected {} values, one for each level", levels));
  return values;
}

std::vector<bool> ConfigReader::boolean_per_level(std::string_view key, bool fallback, std::size_t levels) {
  const json* value = find(key);
  if (!value || !value->is_array()) return std::vector<bool>(levels, boolean(key, fallback));
  if (value->size() != levels || !std::ranges::all_of(*value, [](const json& v) { return v.is_boolean(); })) {
    fail_key(key, fmt::format("expected true or false, or {} of them", levels));
  }
  return value->get<std::vector<bool>>();
}

void ConfigReader::check_class(std::string_view name) {
  constexpr std::string_view key = "_class_name";
  const std::string found = text(key, std::string(name));
  if (found != name && found != fmt::format("Flax{}", name))
    fail_key(key, fmt::format("this network is not built here, only {}", name));
}

bool ConfigReader::is_set(std::string_view key) {
  const json* value = find(key);
  return value && *value != json(false);
}

void ConfigReader::ignore(std::initializer_list<std::string_view> keys) {
  for (const auto key : keys) known_.emplace(key);
}

void ConfigReader::refuse(std::initializer_list<std::string_view> keys, std::string_view why) {
  for (const auto key : keys)
    if (is_set(key)) fail_key(key, why);
}

void ConfigReader::finish() const {
  for (const auto& [key, value] : source_.items()) {
    if (key.starts_with('_') || known_.contains(key)) continue;
    log::warning("{}: key {} is not known here and was ignored", file_, key);
  }
}

}  // namespace millrace
