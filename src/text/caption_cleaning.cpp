#include "caption_cleaning.h"

#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>

#include "html_entities.h"
#include "unicode.h"
#include "windows_1252.h"

namespace millrace {

namespace {

// NOTE [Rules of ftfy]: each is a table over characters, applied until the text settles. What is left out is the repair
// of mojibake: it guesses by a large pattern of unlikely neighbours, which captions hardly ever need (docs/numerics.md
// has the rate). Line breaks need no rule here, since all white space collapses in the end.

constexpr UChar32 escape = 0x1B;

// Letters that are two in one; Æ and œ are letters of their own.
const char16_t* ligature_parts(UChar32 c) {
  static constexpr const char16_t* digraphs[] = {u"DŽ", u"Dž", u"dž", u"LJ", u"Lj", u"lj", u"NJ", u"Nj", u"nj"};
  static constexpr const char16_t* typographic[] = {u"ff", u"fi", u"fl", u"ffi", u"ffl", u"ſt", u"st"};
  if (c >= 0x1C4 && c <= 0x1CC) return digraphs[c - 0x1C4];
  if (c >= 0xFB00 && c <= 0xFB06) return typographic[c - 0xFB00];
  switch (c) {
    case 0x132:
      return u"IJ";
    case 0x133:
      return u"ij";
    case 0x149:
      return u"\u02BCn";
    case 0x1F1:
      return u"DZ";
    case 0x1F2:
      return u"Dz";
    case 0x1F3:
      return u"dz";
    default:
      return nullptr;
  }
}

UChar32 straight_quote(UChar32 c) {
  if (c == 0x2BC || (c >= 0x2018 && c <= 0x201B)) return '\'';
  return c >= 0x201C && c <= 0x201F ? '"' : c;
}

// Full-width and half-width forms: Ａ, ｶ, and the wide space.
bool has_odd_width(UChar32 c) {
  return c == 0x3000 || (c > 0xFF00 && c < 0xFFF0);
}

icu::UnicodeString replace_characters(const icu::UnicodeString& text) {
  icu::UnicodeString fixed;
  for (std::int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
    const auto c = static_cast<UChar32>(from_windows_1252(text.char32At(i)));
    if (const char16_t* parts = ligature_parts(c)) {
      fixed.append(icu::UnicodeString(parts));
    } else if (has_odd_width(c)) {
      fixed.append(compatible_form(c));
    } else {
      fixed.append(straight_quote(c));
    }
  }
  return fixed;
}

bool is_dropped(UChar32 c) {
  return (c <= 0x1F && c != '\t' && c != '\n' && c != '\f' && c != '\r') || c == 0x7F || (c >= 0x206A && c <= 0x206F) ||
         c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFC);
}

// Of a terminal's command at `start` (ESC [ 31 ; 1 m); 0 when there is none.
std::int32_t command_length(const icu::UnicodeString& text, std::int32_t start) {
  if (text.char32At(start) != escape || text.charAt(start + 1) != '[') return 0;
  std::int32_t i = start + 2;
  while (i < text.length() && (text.charAt(i) == ';' || u_isdigit(text.char32At(i)))) i = text.moveIndex32(i, 1);
  const char16_t last = text.charAt(i);
  return (last >= 'a' && last <= 'z') || (last >= 'A' && last <= 'Z') ? i + 1 - start : 0;
}

icu::UnicodeString drop_controls(const icu::UnicodeString& text) {
  icu::UnicodeString kept;
  for (std::int32_t i = 0; i < text.length();) {
    if (const std::int32_t command = command_length(text, i)) {
      i += command;
      continue;
    }
    const UChar32 c = text.char32At(i);
    if (!is_dropped(c)) kept.append(c);
    i = text.moveIndex32(i, 1);
  }
  return kept;
}

std::string fix_line(std::string line, bool unescape) {
  constexpr int max_rounds = 16;  // "&amp;amp;amp;..." takes one per level
  for (int round = 0; round < max_rounds; ++round) {
    const std::string unescaped = unescape ? unescape_clear_html(line) : line;
    std::string fixed = to_utf8(compose(drop_controls(replace_characters(from_utf8(unescaped)))));
    if (fixed == line) break;
    line = std::move(fixed);
  }
  return line;
}

// From the first line with a "<" on the text counts as HTML, whose references stand for themselves.
std::string fix_text(std::string_view text) {
  std::string fixed;
  for (bool unescape = true; !text.empty();) {
    const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size() - 1) + 1);
    unescape &= line.find('<') == line.npos;
    fixed += fix_line(std::string(line), unescape);
    text.remove_prefix(line.size());
  }
  return fixed;
}

bool is_plain(std::string_view text) {
  return std::ranges::all_of(text,
                             [](unsigned char c) { return c < 0x7F && c != '&' && (c >= ' ' || !is_dropped(c)); });
}

}  // namespace

std::string clean_caption(std::string_view utf8) {
  if (is_plain(utf8)) return normalize_caption(utf8);
  return collapse_and_lower(unescape_html(unescape_html(fix_text(utf8))));
}

}  // namespace millrace
