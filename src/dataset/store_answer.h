#pragma once
#include <string_view>

namespace millrace {

// Whether a store has answered that it does not give this object: by 3xx or 4xx, in Arrow's words. 400 is also what an
// old token gets, which is renewed.
inline bool is_final_answer(std::string_view why) {
  constexpr std::string_view answered = "(HTTP status ";
  const auto at = why.rfind(answered);
  if (at == why.npos) return false;
  const auto status = why.substr(at + answered.size(), 3);
  return (status.starts_with('3') || status.starts_with('4')) && status != "400" && status != "408" && status != "429";
}

}  // namespace millrace
