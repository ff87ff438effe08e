#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

// Fields of JSON that may be anybody's: it may be no object, and what it has of that name of another type.
namespace millrace {

// A text as it is, anything else as JSON; empty where there is nothing, or null.
std::string text_of(const nlohmann::json& json, const std::string& key);
std::optional<double> number_in(const nlohmann::json& json, const std::string& key);
std::optional<std::int64_t> integer_in(const nlohmann::json& json, const std::string& key);

}  // namespace millrace
