#include "millrace/download/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/core/text.h"

namespace millrace {

namespace {

std::vector<Network> parse_all(std::initializer_list<const char*> texts) {
  std::vector<Network> networks;
  for (const char* text : texts) {
    const auto network = Network::parse(text);
    ensure(network.has_value(), text);
    networks.push_back(*network);
  }
  return networks;
}

bool is_in(std::span<const Network> networks, const IpAddress& address) {
  return std::any_of(networks.begin(), networks.end(),
                     [&](const Network& network) { return network.contains(address); });
}

const std::vector<Network>& special_v4() {
  static const auto networks = parse_all({
      "0.0.0.0/8",         // this network
      "10.0.0.0/8",        // private
      "100.64.0.0/10",     // carrier-grade NAT
      "127.0.0.0/8",       // loopback
      "168.63.129.16/32",  // a public number behind which Azure answers its own machines
      "169.254.0.0/16",    // link-local; cloud metadata
      "172.16.0.0/12",     // private
      "192.0.0.0/24",      // protocol assignments
      "192.0.2.0/24",      // documentation
      "192.88.99.0/24",    // 6to4 relays
      "192.168.0.0/16",    // private
      "198.18.0.0/15",     // benchmarking
      "198.51.100.0/24",   // documentation
      "203.0.113.0/24",    // documentation
      "224.0.0.0/4",       // multicast
      "240.0.0.0/4",       // reserved, broadcast
  });
  return networks;
}

// Of the IPv6 space only this much is given to public machines...
const std::vector<Network>& global_v6() {
  static const auto networks = parse_all({"2000::/3"});
  return networks;
}

// ...less these.
const std::vector<Network>& special_v6() {
  static const auto networks = parse_all({
      "2001::/23",      // protocol assignments, Teredo among them
      "2001:db8::/32",  // documentation
      "2002::/16",      // 6to4
      "3fff::/20",      // documentation
  });
  return networks;
}

}  // namespace

std::optional<IpAddress> IpAddress::parse(const std::string& text) {
  IpAddress address;
  if (::inet_pton(AF_INET, text.c_str(), address.bytes.data()) == 1) return address;
  address.v4 = false;
  if (::inet_pton(AF_INET6, text.c_str(), address.bytes.data()) == 1) return address;
  return std::nullopt;
}

std::optional<IpAddress> IpAddress::from(const sockaddr& socket_address) {
  IpAddress address;
  if (socket_address.sa_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(socket_address);
    std::memcpy(address.bytes.data(), &in.sin_addr, 4);
    return address;
  }
  if (socket_address.sa_family != AF_INET6) return std::nullopt;
  address.v4 = false;
  std::memcpy(address.bytes.data(), &reinterpret_cast<const sockaddr_in6&>(socket_address).sin6_addr, 16);
  return address;
}

std::optional<Network> Network::parse(std::string_view text) {
  const auto slash = text.find('/');
  const auto base = IpAddress::parse(std::string(text.substr(0, slash)));
  if (!base) return std::nullopt;
  const int bits = base->v4 ? 32 : 128;
  if (slash == text.npos) return Network{*base, bits};
  const auto prefix = parse_number<int>(text.substr(slash + 1));
  if (!prefix || *prefix < 0 || *prefix > bits) return std::nullopt;
  return Network{*base, *prefix};
}

bool Network::contains(const IpAddress& address) const {
  if (address.v4 != base.v4) return false;
  const int whole = prefix / 8, rest = prefix % 8;
  if (!std::equal(base.bytes.begin(), base.bytes.begin() + whole, address.bytes.begin())) return false;
  const int mask = 0xFF00 >> rest & 0xFF;
  return rest == 0 || ((base.bytes[whole] ^ address.bytes[whole]) & mask) == 0;
}

bool is_public(const IpAddress& address) {
  if (address.v4) return !is_in(special_v4(), address);
  return is_in(global_v6(), address) && !is_in(special_v6(), address);
}

bool may_connect(const IpAddress& address, int port, std::span<const Network> open) {
  return is_in(open, address) || (is_public(address) && (port == 80 || port == 443));
}

}  // namespace millrace
