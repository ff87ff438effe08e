#include "opt_out.h"

#include <algorithm>
#include <array>

#include "millrace/core/text.h"

namespace millrace {

namespace {

// What stands before a colon: a rule that has a value, or the name of a program. Dates have colons, too.
bool names_program(std::string_view text) {
  static constexpr std::array<std::string_view, 4> rules = {"max-snippet", "max-image-preview", "max-video-preview",
                                                            "unavailable_after"};
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_of_name = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  };
  return !text.empty() && is_letter(text.front()) && std::all_of(text.begin(), text.end(), is_of_name) &&
         std::find(rules.begin(), rules.end(), text) == rules.end();
}

}  // namespace

bool forbids_use(std::string_view value) {
  static constexpr std::array<std::string_view, 6> words = {"noai",         "noimageai", "noindex",
                                                            "noimageindex", "noml",      "none"};
  bool for_us = true;
  while (!value.empty()) {
    std::string rule = lower(trim(take_until(value, ',')));
    // "NAME: rule" speaks to one program from here on.
    const auto colon = rule.find(':');
    const std::string_view name = trim(std::string_view(rule).substr(0, colon));
    if (colon != rule.npos && names_program(name)) {
      for_us = name == robots_name;
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
