#pragma once
#include <algorithm>
#include <string>
#include <string_view>

// Small words over header lines and robots.txt.
namespace millrace {

inline std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

inline std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

// Takes what stands before the first `mark` (or all) off the front of `text`.
inline std::string_view take_until(std::string_view& text, char mark) {
  const auto end = text.find(mark);
  const std::string_view front = text.substr(0, end);
  text.remove_prefix(end == text.npos ? text.size() : end + 1);
  return front;
}

}  // namespace millrace
