#include "http_get.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/io/net/http.h"
#include "opt_out.h"

namespace millrace {

namespace {

constexpr std::size_t max_header_bytes = 64 << 10;
constexpr std::size_t max_page_bytes = 64 << 10;  // of an answer that is no image
constexpr double connect_seconds = 10;

std::chrono::milliseconds to_milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<long>(seconds * 1000));
}

bool is_success(long status) {
  return status >= 200 && status < 300;
}

bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

int port_of(const sockaddr& address) {
  return ntohs(address.sa_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

[[noreturn]] void fail_without_certificates() {
  const char* const named = std::getenv("SSL_CERT_FILE");
  const std::string where = named && *named ? named : "none in the usual places";
  throw Error(Exit::io, fmt::format("cannot read the certificates that servers are verified with: {}", where),
              "install the package ca-certificates, or let SSL_CERT_FILE name a file of them");
}

}  // namespace

Failure failure_of(CURLcode code) {
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return {FailureKind::timeout, ""};
    case CURLE_PARTIAL_FILE:
      return {FailureKind::truncated, ""};
    case CURLE_FILESIZE_EXCEEDED:
      return {FailureKind::too_large, ""};
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_ISSUER_ERROR:
      return {FailureKind::tls, curl_easy_strerror(code)};
    case CURLE_SSL_CACERT_BADFILE:
      fail_without_certificates();
    case CURLE_URL_MALFORMAT:
      return {FailureKind::bad_url, curl_easy_strerror(code)};
    case CURLE_TOO_MANY_REDIRECTS:
      return {FailureKind::redirects, ""};
    default:
      return {FailureKind::connection, curl_easy_strerror(code)};
  }
}

HttpGet::HttpGet(const FetchOptions& options, const Url& url, Limits limits)
    : options_(options),
      limits_(limits),
      easy_(open_get(url.text, options.user_agent, to_milliseconds(std::min(limits.seconds, connect_seconds)))) {
  curl_easy_setopt(easy_, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy_, CURLOPT_PROXY, "");  // none, whatever the environment says
  curl_easy_setopt(easy_, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_2TLS));
  curl_easy_setopt(easy_, CURLOPT_DNS_CACHE_TIMEOUT, 600L);
  curl_easy_setopt(easy_, CURLOPT_TIMEOUT_MS, std::max(1L, to_milliseconds(limits.seconds).count()));
  curl_easy_setopt(easy_, CURLOPT_OPENSOCKETFUNCTION, &HttpGet::open_socket);
  curl_easy_setopt(easy_, CURLOPT_OPENSOCKETDATA, this);
  curl_easy_setopt(easy_, CURLOPT_HEADERFUNCTION, &HttpGet::on_header);
  curl_easy_setopt(easy_, CURLOPT_HEADERDATA, this);
  curl_easy_setopt(easy_, CURLOPT_WRITEFUNCTION, &HttpGet::on_body);
  curl_easy_setopt(easy_, CURLOPT_WRITEDATA, this);
}

HttpGet::~HttpGet() {
  curl_easy_cleanup(easy_);
}

// NOTE [Connected address]: names are checked here, when their address is about to be used, since a name may mean
// another address at every look (DNS rebinding) and a number has many spellings.
curl_socket_t HttpGet::open_socket(void* self, curlsocktype, curl_sockaddr* address) {
  auto& get = *static_cast<HttpGet*>(self);
  const auto ip = IpAddress::from(address->addr);
  if (!ip || !may_connect(*ip, port_of(address->addr), get.options_.allow_networks)) {
    get.refused_address_ = true;
    return CURL_SOCKET_BAD;
  }
  get.opened_socket_ = true;
  return ::socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

std::size_t HttpGet::on_header(char* data, std::size_t size, std::size_t count, void* self) {
  return static_cast<HttpGet*>(self)->take_header({data, size * count}) ? size * count : 0;
}

bool HttpGet::take_header(std::string_view line) {
  header_bytes_ += line.size();
  if (header_bytes_ > max_header_bytes) {
    verdict_ = Failure{FailureKind::too_large, "headers"};
    return false;
  }
  if (is_redirect(status())) headers_.take(line);  // of images there are none to keep
  if (!options_.opt_out || limits_.cut || !is_success(status())) return true;
  if (line.starts_with(' ') || line.starts_with('\t')) {
    header_ += line;  // it was folded
    return true;
  }
  // The one before is whole now; behind the last one comes an empty line.
  const std::string reason = opt_out_of(std::exchange(header_, std::string(line)));
  if (reason.empty()) return true;
  verdict_ = Failure{FailureKind::opt_out, reason};
  return false;
}

std::size_t HttpGet::on_body(char* data, std::size_t size, std::size_t count, void* self) {
  return static_cast<HttpGet*>(self)->take_body({data, size * count}) ? size * count : 0;
}

bool HttpGet::take_body(std::string_view bytes) {
  if (!is_success(status())) {
    // A page about it: read so that the connection can be used again, and thrown away.
    page_bytes_ += bytes.size();
    is_cut_ = page_bytes_ > max_page_bytes;
    return !is_cut_;
  }
  const std::size_t room = limits_.body_bytes - body_.size();
  if (limits_.cut) {
    is_cut_ = bytes.size() > room;
    body_.append(bytes.substr(0, room));
    return !is_cut_;
  }
  if (bytes.size() > room || announced_bytes() > limits_.body_bytes) {
    verdict_ = Failure{FailureKind::too_large, ""};
    return false;
  }
  body_.append(bytes);
  return true;
}

std::uint64_t HttpGet::announced_bytes() const {
  curl_off_t bytes = 0;
  curl_easy_getinfo(easy_, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &bytes);
  return static_cast<std::uint64_t>(std::max<curl_off_t>(bytes, 0));
}

// curl itself tells only where the page was read to its end.
std::string HttpGet::redirect_target() const {
  char* target = nullptr;
  curl_easy_getinfo(easy_, CURLINFO_REDIRECT_URL, &target);
  if (target) return target;
  const auto location = headers_.find("location");
  if (!is_cut_ || !location || location->empty()) return {};
  curl_easy_getinfo(easy_, CURLINFO_EFFECTIVE_URL, &target);
  return absolute_url(target, *location);
}

long HttpGet::status() const {
  long status = 0;
  curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &status);
  return status;
}

std::variant<std::string, HttpGet::Redirect, Failure> HttpGet::take_result(CURLcode code) {
  if (verdict_) return *verdict_;
  if (code != CURLE_OK && refused_address_ && !opened_socket_)
    return Failure{FailureKind::refused, "not a public address, or a port other than 80 and 443"};
  if (code != CURLE_OK && !is_cut_) return failure_of(code);
  if (is_redirect(status())) {
    std::string target = redirect_target();
    if (target.empty()) return Failure{FailureKind::redirects, "to nowhere"};
    return Redirect{std::move(target)};
  }
  if (!is_success(status())) return Failure{FailureKind::http, std::to_string(status())};
  return std::move(body_);
}

double HttpGet::seconds() const {
  double seconds = 0;
  curl_easy_getinfo(easy_, CURLINFO_TOTAL_TIME, &seconds);
  return seconds;
}

std::optional<double> HttpGet::retry_after() const {
  curl_off_t seconds = 0;
  curl_easy_getinfo(easy_, CURLINFO_RETRY_AFTER, &seconds);
  if (seconds <= 0) return std::nullopt;
  return static_cast<double>(seconds);
}

}  // namespace millrace
