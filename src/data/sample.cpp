#include "millrace/data/sample.h"

namespace millrace {

const char* to_string(Reason reason) {
  switch (reason) {
    case Reason::missing_image:
      return "missing_image";
    case Reason::missing_caption:
      return "missing_caption";
    case Reason::decode_error:
      return "decode_error";
    case Reason::truncated_image:
      return "truncated_image";
    case Reason::not_an_image:
      return "not_an_image";
    case Reason::too_small:
      return "too_small";
    case Reason::too_large:
      return "too_large";
    case Reason::filtered:
      return "filtered";
    case Reason::bad_json:
      return "bad_json";
    case Reason::archive_error:
      return "archive_error";
    case Reason::non_finite:
      return "non_finite";
  }
  return "unknown";
}

std::optional<Reason> try_parse_reason(std::string_view name) {
  for (int i = 0; i < reason_count; ++i)
    if (name == to_string(static_cast<Reason>(i))) return static_cast<Reason>(i);
  return std::nullopt;
}

}  // namespace millrace
