#include "opt_out.h"

#include <algorithm>
#include <array>

#include "millrace/core/text.h"

namespace millrace {

bool forbids_use(std::string_view value) {
  static constexpr std::array<std::string_view, 6> words = {"noai",         "noimageai", "noindex",
                                                            "noimageindex", "noml",      "none"};
  bool for_us = true;
  while (!value.empty()) {
    std::string rule = lower(trim(take_until(value, ',')));
    // "NAME: rule" speaks to one program from here on; the one rule that has a value of its own names nobody.
    if (const auto colon = rule.find(':'); colon != rule.npos && !rule.starts_with("unavailable_after")) {
      for_us = trim(std::string_view(rule).substr(0, colon)) == robots_name;
      rule = std::string(trim(std::string_view(rule).substr(colon + 1)));
    }
    if (for_us && std::find(words.begin(), words.end(), rule) != words.end()) return true;
  }
  return false;
}

std::string opt_out_of(std::string_view line) {
  const std::string name = lower(trim(take_until(line, ':')));
  if (name == "x-robots-tag" && forbids_use(line)) return "X-Robots-Tag";
  if (name == "tdm-reservation" && trim(line) == "1") return "tdm-reservation";
  return {};
}

}  // namespace millrace
