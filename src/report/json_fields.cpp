#include "json_fields.h"

namespace millrace {

std::string text_of(const nlohmann::json& json, const std::string& key) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::optional<double> number_in(const nlohmann::json& json, const std::string& key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

std::optional<std::int64_t> integer_in(const nlohmann::json& json, const std::string& key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number_integer() ? std::optional(found->get<std::int64_t>()) : std::nullopt;
}

}  // namespace millrace
