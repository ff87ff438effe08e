#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace millrace {

// Any JSON as text, also with names and messages that are no UTF-8: their bytes become U+FFFD. `indent`: spaces a
// level; -1 = one line.
template <class Json>
std::string dump_any(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace millrace
