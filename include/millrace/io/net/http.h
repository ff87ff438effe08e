#pragma once
#include <curl/curl.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>

// What all HTTP transfers of the program have in common: curl's set-up, the options of a handle, and which failures
// are transient.
namespace millrace {

// A multi handle, for curl_multi_cleanup; the first one sets curl up.
CURLM* open_transfers();

// A handle for a GET of an http(s) address by `user_agent`, for curl_easy_cleanup. A connection has to stand within
// `connect_limit` (1 ms at least); certificates are verified, signals left alone.
CURL* open_get(const std::string& url, const std::string& user_agent, std::chrono::milliseconds connect_limit);

// The file of the authorities' certificates: SSL_CERT_FILE, else where the system has it; empty if there is none.
std::string certificates_file();

// As browsers have it, "a b" is a%20b, also in a query, where libcurl would make a plus of it.
std::string without_blanks(std::string_view url);

// A parsed URL as text, a host's name beyond ASCII as resolvers know it (xn--mnchen-3ya for münchen). Nothing where it
// can be no name, or where curl was built without libidn2.
std::optional<std::string> try_ascii_url(CURLU* parts);

// The headers of an answer: of the last one where a proxy, a redirect or "100 Continue" answered before. (libcurl tells
// them itself from 7.84 on.)
class AnswerHeaders {
 public:
  // Takes a line, as CURLOPT_HEADERFUNCTION gets it.
  void take(std::string_view line);
  // The first of that name, which is given in lower case.
  std::optional<std::string> find(const std::string& name) const;

 private:
  std::map<std::string, std::string> values_;
  std::string last_;  // the name of the one that may go on in the next line
  std::size_t bytes_ = 0;
};

// Whether the same request may succeed a little later. For a status: 408, 429 and 5xx.
bool is_transient(long status);
// For what ended a transfer: timeouts, lost connections and the like, not what is wrong with the address, the
// certificate, the size or the reader. CURLE_HTTP_RETURNED_ERROR goes by the status.
bool is_transient(CURLcode result, long status);

}  // namespace millrace
