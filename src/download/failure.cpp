#include "millrace/download/failure.h"

#include <array>
#include <charconv>

#include "millrace/io/net/http.h"

namespace millrace {

namespace {

// In the order of FailureKind.
constexpr std::array<const char*, failure_kind_count> words = {
    "bad URL",     "address refused", "robots.txt", "opted out", "timeout", "connection",   "tls",
    "http status", "truncated body",  "too large",  "redirects", "hash",    "not an image", "broken image"};

}  // namespace

const char* to_string(FailureKind kind) {
  return words[static_cast<std::size_t>(kind)];
}

std::string Failure::message() const {
  return detail.empty() ? std::string(to_string(kind)) : std::string(to_string(kind)) + ": " + detail;
}

Failure Failure::from_message(std::string_view message) {
  const auto colon = message.find(": ");
  const std::string_view word = message.substr(0, colon);
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (word == words[i])
      return {static_cast<FailureKind>(i), std::string(colon == message.npos ? "" : message.substr(colon + 2))};
  }
  return {FailureKind::broken_image, std::string(message)};  // another program's words: nothing to ask again for
}

long http_status(const Failure& failure) {
  long status = 0;
  const std::string& text = failure.detail;
  if (failure.kind == FailureKind::http) std::from_chars(text.data(), text.data() + text.size(), status);
  return status;
}

bool is_unanswered(const Failure& failure) {
  return failure.kind == FailureKind::timeout || failure.kind == FailureKind::connection;
}

bool is_retryable(const Failure& failure) {
  switch (failure.kind) {
    case FailureKind::timeout:
    case FailureKind::connection:
    case FailureKind::truncated:
      return true;
    case FailureKind::http:
      return is_transient(http_status(failure));
    default:
      return false;
  }
}

}  // namespace millrace
