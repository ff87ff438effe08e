#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

// Why a row gave no image. The words are in error_message of the metadata and in status_dict of the statistics.
enum class FailureKind : std::uint8_t {
  bad_url,       // no http(s) URL
  refused,       // an address, a port or a scheme that strangers' URLs must not reach
  robots,        // robots.txt
  opt_out,       // the answer's headers
  timeout,       // the time for one attempt is over
  connection,    // no name, no connection, reset, no robots.txt to be had
  tls,           // a certificate that does not verify
  http,          // a status other than 2xx
  truncated,     // the body ended before its announced length
  too_large,     // more than max_bytes
  redirects,     // too many, or to nowhere
  hash,          // not the bytes that the list asks for
  not_an_image,  // by its first bytes no JPEG, PNG or WebP
  broken_image,  // does not decode
};
inline constexpr int failure_kind_count = 14;

struct Failure {
  FailureKind kind = FailureKind::connection;
  std::string detail;  // few different ones, so that they can be counted

  // "timeout", "http status: 404"
  std::string message() const;
  static Failure from_message(std::string_view message);
};

const char* to_string(FailureKind kind);

// Of the answer that was a failure; 0 where something else was.
long http_status(const Failure& failure);
// No answer at all, as of a host that is gone.
bool is_unanswered(const Failure& failure);

// Timeouts, lost connections, 408, 429, 5xx, truncated bodies: asking again may help (is_transient of io/net/http.h),
// at once or by download.retry_failed.
bool is_retryable(const Failure& failure);

}  // namespace millrace
