#pragma once
#include <string>
#include <string_view>
#include <variant>

namespace millrace {

// A path or address in a list: absolute, or relative to the list's folder.
std::string resolve_place(std::string_view place, const std::string& list);

struct NoImage {
  std::string why;
};
// The bytes behind a path, an http(s) or an s3 address.
std::variant<std::string, NoImage> load_image(const std::string& place);

}  // namespace millrace
