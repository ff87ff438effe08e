#include "net/proxy.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <optional>

#include "millrace/core/text.h"

namespace millrace {

namespace {

std::string first_set(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* const value = std::getenv(name); value && *value) return value;
  return {};
}

std::optional<std::uint32_t> try_ipv4(const std::string& text) {
  in_addr address{};
  if (::inet_pton(AF_INET, text.c_str(), &address) != 1) return std::nullopt;
  return ntohl(address.s_addr);
}

// As in 10.0.0.0/8.
bool is_in_network(const std::string& host, const std::string& network) {
  const auto slash = network.find('/');
  if (slash == network.npos) return false;
  const auto address = try_ipv4(host), begin = try_ipv4(network.substr(0, slash));
  const int bits = std::atoi(network.c_str() + slash + 1);
  return address && begin && bits >= 1 && bits <= 32 && (*address ^ *begin) >> (32 - bits) == 0;
}

// A name stands for what is below it, too.
bool is_of(const std::string& host, std::string name) {
  if (name == "*" || is_in_network(host, name)) return true;
  if (name.starts_with('.')) name.erase(0, 1);
  return !name.empty() && (host == name || (!try_ipv4(host) && host.ends_with("." + name)));
}

bool is_in_list(const std::string& host, const std::string& names) {
  for (std::size_t at = 0; at < names.size();) {
    const std::size_t end = std::min(names.find_first_of(", \t", at), names.size());
    if (is_of(host, names.substr(at, end - at))) return true;
    at = end + 1;
  }
  return false;
}

}  // namespace

std::string find_proxy(const std::string& scheme, const std::string& host) {
  if (is_in_list(lower(host), lower(first_set({"no_proxy", "NO_PROXY"})))) return {};
  return scheme == "http" ? first_set({"http_proxy", "all_proxy", "ALL_PROXY"})
                          : first_set({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"});
}

}  // namespace millrace
