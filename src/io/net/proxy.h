#pragma once
#include <string>

namespace millrace {

// The proxy that the environment names for an address of this scheme and host, as curl takes it: http_proxy (in small
// letters only), https_proxy or all_proxy, unless no_proxy has the host. Empty when there is none.
std::string find_proxy(const std::string& scheme, const std::string& host);

}  // namespace millrace
