#pragma once
#include <curl/curl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "millrace/download/failure.h"
#include "millrace/download/fetcher.h"
#include "millrace/io/net/http.h"
#include "url.h"

namespace millrace {

// What a transfer that curl ended with `code` failed by; not for a body that came, nor for statuses. Error(io) when
// this machine has no certificates to verify servers with.
Failure failure_of(CURLcode code);

// One GET of one hop: a curl handle with the limits set, and what came back.
class HttpGet {
 public:
  struct Limits {
    double seconds;
    std::uint64_t body_bytes;
    bool cut = false;  // keep what fits into body_bytes instead of giving up
  };
  HttpGet(const FetchOptions& options, const Url& url, Limits limits);
  ~HttpGet();
  HttpGet(const HttpGet&) = delete;
  HttpGet& operator=(const HttpGet&) = delete;

  CURL* handle() const { return easy_; }

  struct Redirect {
    std::string url;  // absolute
  };
  // What the transfer came to, once curl has ended it with `code`. Error(io) as failure_of.
  std::variant<std::string, Redirect, Failure> take_result(CURLcode code);
  double seconds() const;  // that it took
  // What the server asked to wait before the next try.
  std::optional<double> retry_after() const;

 private:
  static curl_socket_t open_socket(void* self, curlsocktype purpose, curl_sockaddr* address);
  static std::size_t on_header(char* data, std::size_t size, std::size_t count, void* self);
  static std::size_t on_body(char* data, std::size_t size, std::size_t count, void* self);
  bool take_header(std::string_view line);
  bool take_body(std::string_view bytes);
  long status() const;
  std::uint64_t announced_bytes() const;  // 0 = unknown
  std::string redirect_target() const;    // empty = there is none

  const FetchOptions& options_;
  const Limits limits_;
  CURL* easy_;
  AnswerHeaders headers_;
  std::string header_;  // the last one, which may go on in the next line
  std::string body_;
  std::size_t header_bytes_ = 0, page_bytes_ = 0;
  std::optional<Failure> verdict_;  // why we ended the transfer ourselves
  bool is_cut_ = false;
  bool refused_address_ = false, opened_socket_ = false;  // of all the addresses behind the name
};

}  // namespace millrace
