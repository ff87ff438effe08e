#include "url.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <memory>

#include "millrace/core/text.h"
#include "millrace/io/net/http.h"

namespace millrace {

namespace {

constexpr std::size_t max_url_bytes = 8 << 10;

struct Parts {
  std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> handle{curl_url(), &curl_url_cleanup};

  // Where there is a URL already, `text` may be relative to it.
  CURLUcode set(const std::string& text, unsigned flags = 0) const {
    return curl_url_set(handle.get(), CURLUPART_URL, without_blanks(text).c_str(),
                        CURLU_NON_SUPPORT_SCHEME | CURLU_URLENCODE | flags);
  }

  std::string get(CURLUPart part, unsigned flags = 0) const {
    char* text = nullptr;
    if (curl_url_get(handle.get(), part, &text, flags) != CURLUE_OK) return {};
    std::string result = text;
    curl_free(text);
    return result;
  }
};

std::string text_of(CURLUcode code) {
#if LIBCURL_VERSION_NUM >= 0x075000
  return curl_url_strerror(code);
#else
  return fmt::format("libcurl does not take it (CURLUcode {})", static_cast<int>(code));
#endif
}

}  // namespace

std::variant<Url, Failure> parse_url(const std::string& raw) {
  // Without its fragment, in which curl takes no spaces.
  std::string_view rest = trim(raw);
  const std::string text(take_until(rest, '#'));
  if (text.empty()) return Failure{FailureKind::bad_url, "empty"};
  if (text.size() > max_url_bytes) return Failure{FailureKind::bad_url, "longer than 8 KiB"};
  const Parts parts;
  CURLUcode code = parts.set(text, CURLU_DISALLOW_USER);
  if (code == CURLUE_OK) {
    // Parsed anew: a character may stand for one that ends the name, as U+FF0F does for a slash.
    const auto ascii = try_ascii_url(parts.handle.get());
    if (!ascii) return Failure{FailureKind::bad_url, "not the name of a host"};
    code = parts.set(*ascii, CURLU_DISALLOW_USER);
  }
  if (code == CURLUE_USER_NOT_ALLOWED) return Failure{FailureKind::refused, "a user name in the URL"};
  if (code != CURLUE_OK) return Failure{FailureKind::bad_url, text_of(code)};

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

std::string absolute_url(const std::string& base, const std::string& location) {
  const Parts parts;
  const bool is_url = parts.set(base) == CURLUE_OK && parts.set(location) == CURLUE_OK;
  return is_url ? parts.get(CURLUPART_URL) : location;
}

}  // namespace millrace
