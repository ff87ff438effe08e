#include <gtest/gtest.h>

#include <vector>

#include "millrace/download/address.h"

namespace millrace {
namespace {

struct Case {
  const char* address;
  bool is_public;
};

// From the IANA special-purpose registries for IPv4 and IPv6: first and last address of each range, and the neighbours.
constexpr Case cases[] = {
    {"0.0.0.0", false},
    {"0.255.255.255", false},
    {"1.0.0.0", true},
    {"1.1.1.1", true},
    {"8.8.8.8", true},
    {"9.255.255.255", true},
    {"10.0.0.0", false},
    {"10.255.255.255", false},
    {"11.0.0.0", true},
    {"100.63.255.255", true},
    {"100.64.0.0", false},
    {"100.100.100.200", false},  // a cloud's metadata
    {"100.127.255.255", false},
    {"100.128.0.0", true},
    {"126.255.255.255", true},
    {"127.0.0.1", false},
    {"127.255.255.254", false},
    {"128.0.0.0", true},
    {"168.63.129.15", true},
    {"168.63.129.16", false},  // Azure
    {"168.63.129.17", true},
    {"169.253.255.255", true},
    {"169.254.0.0", false},
    {"169.254.169.254", false},  // metadata of most clouds
    {"169.254.170.2", false},
    {"169.255.0.0", true},
    {"172.15.255.255", true},
    {"172.16.0.0", false},
    {"172.31.255.255", false},
    {"172.32.0.0", true},
    {"191.255.255.255", true},
    {"192.0.0.0", false},
    {"192.0.0.170", false},
    {"192.0.1.0", true},
    {"192.0.2.1", false},
    {"192.88.99.1", false},
    {"192.167.255.255", true},
    {"192.168.0.0", false},
    {"192.168.255.255", false},
    {"192.169.0.0", true},
    {"198.17.255.255", true},
    {"198.18.0.0", false},
    {"198.19.255.255", false},
    {"198.20.0.0", true},
    {"198.51.100.7", false},
    {"203.0.113.7", false},
    {"203.0.114.0", true},
    {"223.255.255.255", true},
    {"224.0.0.1", false},
    {"239.255.255.250", false},
    {"240.0.0.1", false},
    {"255.255.255.255", false},
    {"::", false},
    {"::1", false},
    {"::127.0.0.1", false},
    {"::ffff:8.8.8.8", false},
    {"::ffff:127.0.0.1", false},
    {"::ffff:169.254.169.254", false},
    {"::ffff:0:8.8.8.8", false},
    {"64:ff9b::8.8.8.8", false},
    {"64:ff9b::a00:1", false},
    {"64:ff9b:1::1", false},
    {"100::1", false},
    {"1fff:ffff::1", false},
    {"2000::1", true},
    {"2001::1", false},  // Teredo
    {"2001:0:4136:e378:8000:63bf:3fff:fdd2", false},
    {"2001:2::1", false},
    {"2001:10::1", false},
    {"2001:1ff:ffff::1", false},
    {"2001:200::1", true},
    {"2001:4860:4860::8888", true},
    {"2001:db8::1", false},
    {"2001:db9::1", true},
    {"2002:7f00:1::", false},  // 6to4 of 127.0.0.1
    {"2002:808:808::1", false},
    {"2003::1", true},
    {"2606:4700::1111", true},
    {"2a00:1450:4001:82a::2004", true},
    {"3fff::1", false},
    {"3fff:0fff::1", false},
    {"3fff:1000::1", true},
    {"4000::1", false},
    {"5f00::1", false},
    {"fc00::1", false},
    {"fd00:ec2::254", false},  // metadata over IPv6
    {"fe80::1", false},
    {"fec0::1", false},
    {"ff02::1", false},
    {"ff0e::1", false},
};

TEST(Address, OnlyPublicMachinesArePublic) {
  for (const auto& [text, expected] : cases) {
    const auto address = IpAddress::parse(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(is_public(*address), expected) << text;
  }
  EXPECT_GE(std::size(cases), 80u);
}

TEST(Address, ConnectionsGoToWebPortsOrOpenNetworks) {
  const auto at = [](const char* text) { return *IpAddress::parse(text); };
  const std::vector<Network> open = {*Network::parse("127.0.0.0/8"), *Network::parse("fd00::/8")};
  EXPECT_TRUE(may_connect(at("8.8.8.8"), 80, {}));
  EXPECT_TRUE(may_connect(at("8.8.8.8"), 443, {}));
  for (const int port : {0, 22, 25, 81, 3306, 6379, 8080, 8443, 65535}) {
    EXPECT_FALSE(may_connect(at("8.8.8.8"), port, open)) << port;
    EXPECT_TRUE(may_connect(at("127.0.0.1"), port, open)) << port;
    EXPECT_FALSE(may_connect(at("127.0.0.1"), port, {})) << port;
    EXPECT_TRUE(may_connect(at("fd00::1"), port, open)) << port;
  }
  EXPECT_FALSE(may_connect(at("10.0.0.1"), 80, open));
  EXPECT_FALSE(may_connect(at("::1"), 80, open));
  EXPECT_FALSE(may_connect(at("::ffff:127.0.0.1"), 80, open));  // another spelling does not pass for the open network
}

TEST(Address, NetworksCompareTheirPrefixBits) {
  struct {
    const char *network, *address;
    bool inside;
  } const cases[] = {
      {"10.0.0.0/8", "10.255.0.1", true},
      {"10.0.0.0/8", "11.0.0.0", false},
      {"100.64.0.0/10", "100.127.0.1", true},
      {"100.64.0.0/10", "100.128.0.1", false},
      {"192.168.1.7", "192.168.1.7", true},
      {"192.168.1.7", "192.168.1.8", false},
      {"0.0.0.0/0", "203.0.113.9", true},
      {"0.0.0.0/0", "::1", false},
      {"2001:db8::/33", "2001:db8::1", true},
      {"2001:db8::/33", "2001:db8:8000::1", false},
      {"::1/128", "::1", true},
      {"198.18.0.0/15", "198.19.0.1", true},
      {"172.16.0.0/12", "172.31.0.1", true},
      {"172.16.0.0/12", "172.32.0.1", false},
      {"169.254.1.0/31", "169.254.1.1", true},
      {"169.254.1.0/31", "169.254.1.2", false},
  };
  for (const auto& c : cases)
    EXPECT_EQ(Network::parse(c.network)->contains(*IpAddress::parse(c.address)), c.inside)
        << c.network << " " << c.address;
}

TEST(Address, WhatIsNoNetworkIsRefused) {
  for (const char* text : {"", "/8", "10.0.0/8", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/8x", "10.0.0.0/", "::/129",
                           "localhost", "10.0.0.0 /8", "0x7f.1", "2130706433"})
    EXPECT_FALSE(Network::parse(text)) << text;
}

}  // namespace
}  // namespace millrace
