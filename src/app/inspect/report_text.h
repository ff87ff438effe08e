#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace millrace {

// A report of inspect.h as a person reads it: single values first, then a table per list or map, lengths and bytes in
// fitting units, problems last.
std::string report_text(const std::string& path, const nlohmann::json& report);

}  // namespace millrace
