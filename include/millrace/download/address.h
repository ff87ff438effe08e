#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

struct sockaddr;

// Which machines a downloader of strangers' URLs may talk to.
namespace millrace {

// An IPv4 or IPv6 address; an IPv4 one fills the first four bytes.
struct IpAddress {
  bool v4 = true;
  std::array<std::uint8_t, 16> bytes{};

  static std::optional<IpAddress> parse(const std::string& text);
  // Nothing for families other than IPv4 and IPv6.
  static std::optional<IpAddress> from(const sockaddr& address);
  bool operator==(const IpAddress&) const = default;
};

// An address with the length of its fixed front: "10.0.0.0/8", "fd00::/8"; an address alone is a network of one.
struct Network {
  IpAddress base;
  int prefix = 0;  // bits

  static std::optional<Network> parse(std::string_view text);
  bool contains(const IpAddress& address) const;
};

// False for everything that is not one public machine: private, loopback, link-local (cloud metadata), carrier-grade
// NAT, documentation, benchmarking, multicast and reserved ranges, and IPv6 forms that carry an IPv4 address (mapped,
// NAT64, 6to4, Teredo). Source: the IANA special-purpose address registries.
bool is_public(const IpAddress& address);

// Whether a connection may be made: any port inside `open`, elsewhere only 80 and 443 of public addresses.
bool may_connect(const IpAddress& address, int port, std::span<const Network> open);

}  // namespace millrace
