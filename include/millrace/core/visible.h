#pragma once
#include <string>
#include <string_view>

// Keys, captions and names of files come from strangers, and must not move a terminal's cursor, colour what follows,
// turn its direction, or pass for a line of ours.
namespace millrace {

// The text with control characters other than tab and line end, and bytes that are no UTF-8, as \xNN or \uNNNN. Lines
// after the first begin with two blanks at least; a line end at the end of the text is dropped.
std::string visible(std::string_view text);

// The same on one line: a line end as \n.
std::string visible_line(std::string_view text);

}  // namespace millrace
