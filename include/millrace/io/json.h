#pragma once
#include <nlohmann/json.hpp>
#include <string_view>

#include "millrace/core/files.h"

namespace millrace {

// JSON as strict as configuration and weights deserve: duplicate keys, more than 64 levels and anything after the value
// are refused, and files of more than 256 MiB. Error(io) names `where` and the place.
nlohmann::json parse_json(std::string_view text, std::string_view where);
nlohmann::json read_json(const fs::path& path);

// The style of the reference libraries' writer: keys sorted, indented by 2, ASCII only, newline at the end.
std::string format_json(const nlohmann::json& json);

}  // namespace millrace
