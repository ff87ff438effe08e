#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "millrace/core/files.h"

namespace millrace {

// JSON as strict as configuration and weights deserve: duplicate keys, more than 64 levels and anything after the value
// are refused, and files of more than 256 MiB. Error(io) names `where` and the place.
nlohmann::json parse_json(std::string_view text, std::string_view where);
nlohmann::json read_json(const fs::path& path);
// The same for a file that has to hold an object.
nlohmann::json read_json_object(const fs::path& path);

// A number that may be missing: null.
nlohmann::json optional_to_json(const std::optional<std::uint64_t>& number);
std::optional<std::uint64_t> optional_from_json(const nlohmann::json& json);  // json::type_error for anything else

// The style of the reference libraries' writer: keys sorted, indented by 2, ASCII only, newline at the end.
std::string format_json(const nlohmann::json& json);

}  // namespace millrace
