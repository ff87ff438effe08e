#include "url.h"

#include <curl/curl.h>

#include <memory>

#include "millrace/core/text.h"

namespace millrace {

namespace {

constexpr std::size_t max_url_bytes = 8 << 10;

struct Parts {
  std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> handle{curl_url(), &curl_url_cleanup};

  std::string get(CURLUPart part, unsigned flags = 0) const {
    char* text = nullptr;
    if (curl_url_get(handle.get(), part, &text, flags) != CURLUE_OK) return {};
    std::string result = text;
    curl_free(text);
    return result;
  }
};

}  // namespace

std::variant<Url, Failure> parse_url(const std::string& raw) {
  const std::string text(trim(raw));
  if (text.empty()) return Failure{FailureKind::bad_url, "empty"};
  if (text.size() > max_url_bytes) return Failure{FailureKind::bad_url, "longer than 8 KiB"};
  const Parts parts;
  const CURLUcode code = curl_url_set(parts.handle.get(), CURLUPART_URL, text.c_str(),
                                      CURLU_NON_SUPPORT_SCHEME | CURLU_URLENCODE | CURLU_DISALLOW_USER);
  if (code == CURLUE_USER_NOT_ALLOWED) return Failure{FailureKind::refused, "a user name in the URL"};
  if (code != CURLUE_OK) return Failure{FailureKind::bad_url, curl_url_strerror(code)};

  const std::string scheme = lower(parts.get(CURLUPART_SCHEME));
  if (scheme != "http" && scheme != "https") return Failure{FailureKind::refused, "scheme"};
  const std::string host = lower(parts.get(CURLUPART_HOST));
  if (host.empty()) return Failure{FailureKind::bad_url, "no host"};
  curl_url_set(parts.handle.get(), CURLUPART_FRAGMENT, nullptr, 0);
  const std::string query = parts.get(CURLUPART_QUERY);
  return Url{parts.get(CURLUPART_URL), host,
             scheme + "://" + host + ":" + parts.get(CURLUPART_PORT, CURLU_DEFAULT_PORT),
             parts.get(CURLUPART_PATH) + (query.empty() ? "" : "?" + query)};
}

}  // namespace millrace
