#include "millrace/core/text.h"

#include <algorithm>
#include <cctype>

namespace millrace {

namespace {

constexpr std::string_view white_space = " \t\n\v\f\r";

std::size_t length_by_first_byte(unsigned char first) {
  if (first < 0x80) return 1;
  if (first < 0xC2) return 0;  // a following byte, or ASCII spelt with two bytes
  if (first < 0xE0) return 2;
  if (first < 0xF0) return 3;
  return first < 0xF5 ? 4 : 0;
}

}  // namespace

// The second byte decides about what is spelt too long, about surrogates and about numbers above U+10FFFF (Unicode,
// table 3-7).
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = length_by_first_byte(byte(0));
  if (length == 0) return {1, false};
  int low = byte(0) == 0xE0 ? 0xA0 : byte(0) == 0xF0 ? 0x90 : 0x80;
  int high = byte(0) == 0xED ? 0x9F : byte(0) == 0xF4 ? 0x8F : 0xBF;
  std::size_t bytes = 1;
  for (; bytes < std::min(length, text.size()) && low <= byte(bytes) && byte(bytes) <= high; ++bytes) {
    low = 0x80;
    high = 0xBF;
  }
  return {bytes, bytes == length};
}

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(white_space);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(white_space) - first + 1);
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

std::string shell_word(const std::string& text) {
  const bool is_plain = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_./=:,+-@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (is_plain) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

std::string_view take_until(std::string_view& text, char mark) {
  const std::size_t end = text.find(mark);
  const std::string_view front = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + 1);
  return front;
}

std::string valid_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Character character = first_character(bytes);
    text += character.complete ? bytes.substr(0, character.bytes) : "\uFFFD";
    bytes.remove_prefix(character.bytes);
  }
  return text;
}

std::string without_nul(std::string text) {
  for (std::size_t nul; (nul = text.find('\0')) != text.npos;) text.replace(nul, 1, "\uFFFD");
  return text;
}

}  // namespace millrace
