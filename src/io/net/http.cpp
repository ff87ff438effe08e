#include "millrace/io/net/http.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>

#include "millrace/core/text.h"
#include "thread_locale.h"

namespace millrace {

namespace {

// As a browser sends it: `a b.jpg` is a%20b.jpg. What is no URL stays as it is, and curl says so.
std::string encoded(const std::string& url) {
  CURLU* const parts = curl_url();
  const bool is_url = curl_url_set(parts, CURLUPART_URL, without_blanks(url).c_str(), CURLU_URLENCODE) == CURLUE_OK;
  std::string encoded = is_url ? try_ascii_url(parts).value_or(url) : url;
  curl_url_cleanup(parts);
  return encoded;
}

// The place that is built into curl is that of the system it was built on; others are where Debian, Red Hat, SUSE and
// Alpine have theirs.
std::string find_certificates() {
  for (const char* path : {curl_version_info(CURLVERSION_NOW)->cainfo, "/etc/ssl/certs/ca-certificates.crt",
                           "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"})
    if (path && ::access(path, R_OK) == 0) return path;
  return {};
}

}  // namespace

std::string certificates_file() {
  static const std::string found = find_certificates();  // a transfer need not look for them
  const char* const named = std::getenv("SSL_CERT_FILE");
  return named && *named ? named : found;
}

std::string without_blanks(std::string_view url) {
  std::string text;
  for (const char c : url) {
    if (c == ' ')
      text += "%20";
    else
      text += c;
  }
  return text;
}

CURLM* open_transfers() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  return curl_multi_init();
}

CURL* open_get(const std::string& url, const std::string& user_agent, std::chrono::milliseconds connect_limit) {
  CURL* const easy = curl_easy_init();
  curl_easy_setopt(easy, CURLOPT_URL, encoded(url).c_str());
#if LIBCURL_VERSION_NUM >= 0x075500
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS, long{CURLPROTO_HTTP | CURLPROTO_HTTPS});
#endif
  curl_easy_setopt(easy, CURLOPT_USERAGENT, user_agent.c_str());
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, std::max(1L, static_cast<long>(connect_limit.count())));
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  if (const auto certificates = certificates_file(); !certificates.empty()) {
    curl_easy_setopt(easy, CURLOPT_CAINFO, certificates.c_str());
    // From 7.87 on curl reads the file once for all connections, unless there is a folder, too: 30 ms of each.
    curl_easy_setopt(easy, CURLOPT_CAPATH, nullptr);
  }
#if LIBCURL_VERSION_NUM >= 0x075700
  // The look-up of a name that takes too long is left to its thread. Else curl waits for it, and all transfers with it.
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
#endif
  return easy;
}

std::optional<std::string> try_ascii_url(CURLU* parts) {
#if LIBCURL_VERSION_NUM >= 0x075800
  constexpr unsigned flags = CURLU_PUNYCODE;
#else
  constexpr unsigned flags = 0;  // such names stay as they are; curl looks them up itself where the locale is UTF-8
#endif
  const ThreadLocale utf8(locale_for_writing_names());
  char* text = nullptr;
  if (curl_url_get(parts, CURLUPART_URL, &text, flags) != CURLUE_OK) return std::nullopt;
  std::string url = text;
  curl_free(text);
  return url;
}

void AnswerHeaders::take(std::string_view line) {
  constexpr std::size_t most_bytes = 64 << 10;  // of headers; what goes beyond is not taken
  if (line.starts_with("HTTP/")) {
    *this = {};
    return;
  }
  bytes_ += line.size();
  if (bytes_ > most_bytes) return;
  if (line.starts_with(' ') || line.starts_with('\t')) {  // the one before goes on here
    if (const auto before = values_.find(last_); before != values_.end())
      before->second = trim(before->second + " " + std::string(trim(line)));
    return;
  }
  last_.clear();
  const auto colon = line.find(':');
  if (colon == line.npos) return;
  auto name = lower(line.substr(0, colon));
  if (values_.emplace(name, trim(line.substr(colon + 1))).second) last_ = std::move(name);
}

std::optional<std::string> AnswerHeaders::find(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

bool is_transient(long status) {
  return status == 408 || status == 429 || (status >= 500 && status <= 599);
}

bool is_transient(CURLcode result, long status) {
  switch (result) {
    case CURLE_HTTP_RETURNED_ERROR:
      return is_transient(status);
    case CURLE_URL_MALFORMAT:
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_FILESIZE_EXCEEDED:
    case CURLE_WRITE_ERROR:
      return false;
    default:
      return true;
  }
}

}  // namespace millrace
