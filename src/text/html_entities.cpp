#include "html_entities.h"

#include <unicode/locid.h>

#include <algorithm>
#include <optional>

#include "millrace/core/text.h"
#include "unicode.h"
#include "windows_1252.h"

namespace millrace {

namespace {

// What a reference at the start of a text stands for, and how many bytes it takes.
struct Reference {
  std::string text;
  std::size_t bytes = 0;
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_hex_digit(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
bool is_alphanumeric(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

std::string_view take_while(std::string_view text, bool (*accepts)(char)) {
  return text.substr(0, std::find_if_not(text.begin(), text.end(), accepts) - text.begin());
}

const HtmlEntity* find_entity(std::string_view name) {
  const auto table = html_entity_table();
  const auto found = std::ranges::lower_bound(table, name, {}, &HtmlEntity::name);
  return found != table.end() && found->name == name ? &*found : nullptr;
}

// Numbers that HTML gives no character.
bool is_nothing(char32_t c) {
  return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
         (c >= 0xFDD0 && c <= 0xFDEF) || (c & 0xFFFE) == 0xFFFE;
}

std::string text_of_number(char32_t number) {
  if (number == 0 || (number >= 0xD800 && number <= 0xDFFF) || number > 0x10FFFF) return "\uFFFD";
  if (is_nothing(number)) return {};
  return to_utf8(icu::UnicodeString(static_cast<UChar32>(from_windows_1252(number))));
}

// "#233;" or "#xE9", behind the ampersand.
std::optional<Reference> read_number(std::string_view text) {
  const bool hex = text.size() > 1 && (text[1] == 'x' || text[1] == 'X');
  const std::string_view digits = take_while(text.substr(hex ? 2 : 1), hex ? is_hex_digit : is_digit);
  if (digits.empty()) return std::nullopt;
  char32_t number = 0;
  for (const char c : digits) {
    const char32_t digit = is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10;
    number = std::min<char32_t>(number * (hex ? 16 : 10) + digit, 0x110000);  // one too many says enough
  }
  const std::size_t end = (digits.data() - text.data()) + digits.size();
  return Reference{text_of_number(number), end + (end < text.size() && text[end] == ';')};
}

std::optional<Reference> read_closed_name(std::string_view text, std::string_view name) {
  if (name.size() == text.size() || text[name.size()] != ';') return std::nullopt;
  const HtmlEntity* entity = find_entity(name);
  if (!entity) return std::nullopt;
  return Reference{std::string(entity->text), name.size() + 1};
}

// The longest old name that `name` starts with.
std::optional<Reference> read_bare_name(std::string_view name) {
  constexpr std::size_t longest = 6, shortest = 2;
  for (std::size_t length = std::min(name.size(), longest); length >= shortest; --length) {
    const HtmlEntity* entity = find_entity(name.substr(0, length));
    if (entity && entity->bare) return Reference{std::string(entity->text), length};
  }
  return std::nullopt;
}

std::optional<Reference> read_reference(std::string_view text) {
  if (text.starts_with('#')) return read_number(text);
  const std::string_view name = take_while(text, is_alphanumeric);
  if (auto closed = read_closed_name(text, name)) return closed;
  return read_bare_name(name);
}

// A name in capitals that HTML knows in lower case only; the character becomes a capital too.
std::optional<Reference> read_capital_name(std::string_view name) {
  if (std::ranges::any_of(name, [](char c) { return c >= 'a' && c <= 'z'; }) || read_bare_name(name))
    return std::nullopt;
  const HtmlEntity* entity = find_entity(lower(name));
  if (!entity) return std::nullopt;
  return Reference{to_utf8(from_utf8(entity->text).toUpper(icu::Locale::getRoot())), name.size() + 1};
}

std::optional<Reference> read_clear_reference(std::string_view text) {
  constexpr std::size_t longest = 24;  // longer names are left for the final unescape_html, as ftfy does
  const bool number = text.starts_with('#');
  const std::string_view name = take_while(text.substr(number), is_alphanumeric);
  const std::size_t end = number + name.size();
  if (name.empty() || name.size() > longest || end == text.size() || text[end] != ';') return std::nullopt;
  if (!number) {
    if (auto closed = read_closed_name(text, name)) return closed;
    return read_capital_name(name);
  }
  auto reference = read_number(text);
  if (!reference || reference->bytes != end + 1 || reference->text == ";") return std::nullopt;
  return reference;
}

template <class Read>
std::string replace_references(std::string_view text, Read read) {
  std::string result;
  result.reserve(text.size());
  while (true) {
    const std::size_t ampersand = text.find('&');
    result += text.substr(0, ampersand);
    if (ampersand == text.npos) return result;
    text.remove_prefix(ampersand + 1);
    const std::optional<Reference> reference = read(text);
    result += reference ? reference->text : "&";
    if (reference) text.remove_prefix(reference->bytes);
  }
}

}  // namespace

std::string unescape_html(std::string_view text) {
  return replace_references(text, read_reference);
}

std::string unescape_clear_html(std::string_view text) {
  return replace_references(text, read_clear_reference);
}

}  // namespace millrace
