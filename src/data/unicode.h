#pragma once
#include <cstdint>
#include <string>
#include <string_view>

// The Unicode rules of CLIP's tokenizer, over ICU's tables.
namespace millrace {

// NFC, then every run of white space to one space, then lower case, letter by letter (no final sigma). Invalid UTF-8
// becomes U+FFFD.
std::string normalize_caption(std::string_view utf8);

enum class CharacterClass : std::uint8_t { space, letter, number, other };

// The class of the character at `position` of valid UTF-8; moves `position` behind it.
CharacterClass next_class(std::string_view utf8, std::size_t& position);

}  // namespace millrace
