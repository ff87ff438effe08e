#pragma once
#include <string>
#include <string_view>

namespace millrace {

// The name under which robots.txt and X-Robots-Tag can speak to this program.
inline constexpr std::string_view robots_name = "millrace";

// Whether the value of one X-Robots-Tag header keeps this image out of data sets: noai, noimageai, noindex,
// noimageindex, noml or none, for everybody or behind "millrace:".
bool forbids_use(std::string_view value);

// What one header line of an answer says: why the image must not be used; empty = nothing (X-Robots-Tag,
// tdm-reservation: 1 of the W3C's TDM reservation protocol).
std::string opt_out_of(std::string_view header_line);

}  // namespace millrace
