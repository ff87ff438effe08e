#pragma once
#include <string>
#include <string_view>

namespace millrace {

// What open_clip's tokenizer makes of a caption before it splits it: ftfy.fix_text without the repair of mojibake,
// html.unescape twice, white space collapsed, lower case (docs/numerics.md, "Tokens"). Invalid UTF-8 becomes U+FFFD.
std::string clean_caption(std::string_view utf8);

}  // namespace millrace
