#pragma once
#include <unicode/unistr.h>

#include <cstdint>
#include <string>
#include <string_view>

// The Unicode rules of CLIP's tokenizer, over ICU's tables.
namespace millrace {

// NFC, then every run of white space to one space, then lower case, letter by letter (no final sigma). Invalid UTF-8
// becomes U+FFFD.
std::string normalize_caption(std::string_view utf8);

// Every run of white space (and combining iotas, U+0345) to one space, then lower case as a whole text has it (with the
// final sigma).
std::string collapse_and_lower(std::string_view utf8);

icu::UnicodeString from_utf8(std::string_view utf8);  // invalid bytes become U+FFFD
std::string to_utf8(const icu::UnicodeString& text);

// NFC.
icu::UnicodeString compose(const icu::UnicodeString& text);
// NFKC of one character.
icu::UnicodeString compatible_form(UChar32 c);

enum class CharacterClass : std::uint8_t { space, letter, number, other };

// The class of the character at `position` of valid UTF-8; moves `position` behind it.
CharacterClass next_class(std::string_view utf8, std::size_t& position);

}  // namespace millrace
