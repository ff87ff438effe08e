#pragma once
#include <charconv>
#include <concepts>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

// Text as bytes: ASCII's white space and letters, and UTF-8 from strangers.
namespace millrace {

// Without the ASCII white space at both ends.
std::string_view trim(std::string_view text);

// A to Z become a to z; every other byte stays.
std::string lower(std::string_view text);

// Quoted, if necessary, as one word of a shell.
std::string shell_word(const std::string& text);

// Removes what stands before the first `mark` (or all) from the front of `text`, and the mark with it; returns what it
// removed, without the mark.
std::string_view take_until(std::string_view& text, char mark);

// Nothing unless the whole text is one number that fits into T, as std::from_chars reads it: no white space, no plus
// and no 0x before the digits; "inf" and "nan" are floating-point numbers.
template <std::integral T>
std::optional<T> parse_number(std::string_view text, int base = 10) {
  T number = 0;
  const char* const text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, number, base);
  return error == std::errc() && end == text_end ? std::optional(number) : std::nullopt;
}
template <std::floating_point T>
std::optional<T> parse_number(std::string_view text) {
  T number = 0;
  const char* const text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, number);
  return error == std::errc() && end == text_end ? std::optional(number) : std::nullopt;
}

// The UTF-8 character that a non-empty text begins with, or as much of one as is there.
struct Character {
  std::size_t bytes;
  bool complete;
};
Character first_character(std::string_view text);
// The bytes as well-formed UTF-8. U+FFFD stands for each byte that begins no character, and for the whole of a
// character that was cut short: what ICU and Python's errors="replace" do.
std::string valid_utf8(std::string_view bytes);
// U+FFFD for each NUL, at which text ends for C libraries.
std::string without_nul(std::string text);

}  // namespace millrace
