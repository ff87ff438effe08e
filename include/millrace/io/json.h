#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "millrace/core/files.h"

namespace millrace {

// JSON as strict as configuration and weights deserve: duplicate keys, more than 64 levels and anything after the value
// are refused, and files of more than 256 MiB. Error(io) names `where` and the place.
nlohmann::json parse_json(std::string_view text, std::string_view where);
nlohmann::json read_json(const fs::path& path);
// The same for a file that has to hold an object.
nlohmann::json read_json_object(const fs::path& path);

// What Python's json reads beyond JSON, as JSON: NaN becomes null, Infinity the largest number, half a surrogate pair
// and bytes that are no UTF-8 become U+FFFD. Everything else stays as it is.
std::string from_python_json(std::string_view text);
// Rows that strangers wrote, read as Python's json reads them: the above, and the last of equal keys counts. More than
// 64 levels are refused all the same.
nlohmann::json parse_python_json(std::string_view text, std::string_view where);

// A number that may be missing: null.
nlohmann::json optional_to_json(const std::optional<std::uint64_t>& number);
std::optional<std::uint64_t> optional_from_json(const nlohmann::json& json);  // json::type_error for anything else

// The style of the reference libraries' writer: keys sorted, indented by 2, ASCII only, newline at the end.
std::string format_json(const nlohmann::json& json);

}  // namespace millrace
