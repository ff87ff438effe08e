#include "millrace/core/visible.h"

#include <fmt/format.h>

#include <cstdint>

#include "millrace/core/text.h"

namespace millrace {

namespace {

// Of a whole character.
char32_t number_of(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0);
  char32_t number = byte(0) & (0xFF >> (character.size() + 1));
  for (std::size_t i = 1; i < character.size(); ++i) number = number << 6 | (byte(i) & 0x3F);
  return number;
}

// C0 and C1 controls, line and paragraph separators, and what turns the direction of the text behind it.
bool is_obeyed(char32_t number) {
  return number < 0x20 || (number >= 0x7F && number < 0xA0) || (number >= 0x2028 && number <= 0x202E) ||
         (number >= 0x2066 && number <= 0x2069);
}

std::string shown(std::string_view character, bool complete) {
  const char32_t number = complete ? number_of(character) : 0;
  if (number == '\n') return "\\n";
  if (complete && (number == '\t' || !is_obeyed(number))) return std::string(character);
  if (number >= 0x80) return fmt::format("\\u{:04x}", static_cast<std::uint32_t>(number));
  std::string bytes;
  for (const char c : character) bytes += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return bytes;
}

}  // namespace

std::string visible(std::string_view text) {
  std::string result = visible_line(take_until(text, '\n'));
  while (!text.empty()) {
    result += text.starts_with("  ") ? "\n" : "\n  ";
    result += visible_line(take_until(text, '\n'));
  }
  return result;
}

std::string visible_line(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const auto [bytes, complete] = first_character(text);
    result += shown(text.substr(0, bytes), complete);
    text.remove_prefix(bytes);
  }
  return result;
}

}  // namespace millrace
