#include "millrace/io/cell.h"

#include <nlohmann/json.hpp>

namespace millrace {

namespace {

struct CellToJson {
  nlohmann::ordered_json operator()(std::monostate) const { return nullptr; }
  nlohmann::ordered_json operator()(const JsonText& several) const {
    auto json = nlohmann::ordered_json::parse(several.text, nullptr, /*allow_exceptions=*/false);
    return json.is_discarded() ? nlohmann::ordered_json(several.text) : json;
  }
  template <class T>
  nlohmann::ordered_json operator()(const T& value) const {
    return value;
  }
};

}  // namespace

nlohmann::ordered_json to_json(const Cell& cell) {
  return std::visit(CellToJson(), cell);
}

}  // namespace millrace
