#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <variant>

namespace millrace {

// Several values, a list or a map.
struct JsonText {
  std::string text;
  bool operator==(const JsonText&) const = default;
};

// One value of a row of a table: null, or what the row has. A whole number is int64, and uint64 only beyond it. Text
// may not be UTF-8, and may be any bytes where the table holds bytes.
using Cell = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, JsonText>;

inline Cell whole_number(std::uint64_t number) {
  if (std::in_range<std::int64_t>(number)) return static_cast<std::int64_t>(number);
  return number;
}

// The same value as JSON.
nlohmann::ordered_json to_json(const Cell& cell);

}  // namespace millrace
