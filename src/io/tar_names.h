#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

struct MemberName {
  std::string key, field;
};

// Splits a member's path into key and field; nothing for members that belong to no sample (see NOTE [What makes a
// sample]).
std::optional<MemberName> try_member_name(std::string_view path);

}  // namespace millrace
