#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "millrace/dataset/sample.h"

namespace millrace {

// A path or address in a list: absolute, or relative to the list's folder.
std::string resolve_uri(std::string_view uri, const std::string& list);

struct LoadFailure {
  RejectReason reason;  // missing_image or too_large
  std::string why;
};
// The bytes behind a path, an http(s) or an s3 address, at most `max_bytes`.
std::variant<std::string, LoadFailure> load_image(const std::string& uri, std::uint64_t max_bytes);

}  // namespace millrace
