#include "millrace/io/net/http.h"

#include <algorithm>
#include <mutex>

namespace millrace {

namespace {

// As a browser sends it: `a b.jpg` is a%20b.jpg. What is no URL stays as it is, and curl says so.
std::string encoded(const std::string& url) {
  CURLU* const parts = curl_url();
  char* text = nullptr;
  const bool is_url = curl_url_set(parts, CURLUPART_URL, url.c_str(), CURLU_URLENCODE) == CURLUE_OK &&
                      curl_url_get(parts, CURLUPART_URL, &text, 0) == CURLUE_OK;
  const std::string encoded = is_url ? text : url;
  curl_free(text);
  curl_url_cleanup(parts);
  return encoded;
}

}  // namespace

CURLM* open_transfers() {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  return curl_multi_init();
}

CURL* open_get(const std::string& url, const std::string& user_agent, std::chrono::milliseconds connect_limit) {
  CURL* const easy = curl_easy_init();
  curl_easy_setopt(easy, CURLOPT_URL, encoded(url).c_str());
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_USERAGENT, user_agent.c_str());
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, std::max(1L, static_cast<long>(connect_limit.count())));
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  return easy;
}

bool may_pass(long status) {
  return status == 408 || status == 429 || (status >= 500 && status <= 599);
}

bool may_pass(CURLcode result, long status) {
  switch (result) {
    case CURLE_HTTP_RETURNED_ERROR:
      return may_pass(status);
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
