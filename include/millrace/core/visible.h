#pragma once
#include <string>
#include <string_view>

namespace millrace {

// The text with control characters other than tab and newline as \xNN: keys and captions come from strangers, and must
// not move a terminal's cursor or colour what follows.
std::string visible(std::string_view text);

}  // namespace millrace
