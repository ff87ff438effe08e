#pragma once
#include <span>
#include <string>
#include <string_view>

// HTML's character references: &eacute; &#233; &#xE9;
namespace millrace {

struct HtmlEntity {
  std::string_view name, text;  // text in UTF-8
  bool bare;                    // also known without the semicolon
};

// Sorted by name (html_entities_table.cpp, which the build makes with scripts/html_entities.py).
std::span<const HtmlEntity> html_entity_table();

// As a browser reads text, and as Python's html.unescape: every reference once, also those of the old names that lack
// their semicolon (&ampx is &x). `text` is UTF-8.
std::string unescape_html(std::string_view text);

// Only references that end in a semicolon, and the lower-case names also in capitals (&EACUTE; is É): what cannot have
// been meant otherwise. As ftfy 6.
std::string unescape_clear_html(std::string_view text);

}  // namespace millrace
