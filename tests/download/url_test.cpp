#include <gtest/gtest.h>

#include "url.h"

namespace millrace {
namespace {

TEST(Url, PartsNameWhomItIsAbout) {
  struct {
    const char *text, *origin, *path;
  } const cases[] = {
      {"http://example.org", "http://example.org:80", "/"},
      {"HTTPS://Example.ORG/A.jpg?x=1#part", "https://example.org:443", "/A.jpg?x=1"},
      {"http://example.org:8080/a/../b.jpg", "http://example.org:8080", "/b.jpg"},
      {" https://example.org/a b.jpg\n", "https://example.org:443", "/a%20b.jpg"},
      {"http://example.org/\xC3\xA9.jpg", "http://example.org:80", "/%c3%a9.jpg"},
      {"http://[2001:db8::1]:81/x", "http://[2001:db8::1]:81", "/x"},
      {"http://2130706433/", "http://127.0.0.1:80", "/"},
      {"http://0x7f.1/", "http://127.0.0.1:80", "/"},
      {"http://0177.0.0.01/", "http://127.0.0.1:80", "/"},
  };
  for (const auto& c : cases) {
    const auto url = parse_url(c.text);
    ASSERT_TRUE(std::holds_alternative<Url>(url)) << c.text << ": " << std::get<Failure>(url).message();
    EXPECT_EQ(std::get<Url>(url).origin, c.origin) << c.text;
    EXPECT_EQ(std::get<Url>(url).path, c.path) << c.text;
    const std::string& origin = std::get<Url>(url).origin;
    EXPECT_EQ(origin.substr(0, origin.rfind(':')).substr(origin.find("://") + 3), std::get<Url>(url).host) << c.text;
  }
}

TEST(Url, OnlyTheWebIsAskedAndWithoutPasswords) {
  for (const char* text :
       {"file:///etc/passwd", "FILE:///etc/passwd", "ftp://example.org/a.jpg", "gopher://example.org/1",
        "dict://127.0.0.1:11211/stats", "ldap://example.org", "smb://example.org/x", "scp://example.org/x",
        "telnet://example.org", "imap://example.org", "tftp://example.org/x", "ws://example.org/",
        "rtsp://example.org/x", "mqtt://example.org", "http://user:pass@example.org/",
        "http://example.org@169.254.169.254/latest/meta-data/", "https://user@example.org/"}) {
    const auto url = parse_url(text);
    ASSERT_TRUE(std::holds_alternative<Failure>(url)) << text;
    EXPECT_EQ(std::get<Failure>(url).kind, FailureKind::refused) << text;
  }
}

TEST(Url, WhatIsNoUrlSaysSo) {
  const std::string endless = "http://example.org/" + std::string(10'000, 'a');
  for (const std::string& text : {std::string(), std::string("  "), std::string("example.org/a.jpg"),
                                  std::string("/a.jpg"), std::string("http://"), std::string("http://a b/"),
                                  std::string("http://example.org:99999/"), std::string("http://[::1/"), endless,
                                  std::string("data:image/png;base64,AAAA"), std::string("javascript:alert(1)")}) {
    const auto url = parse_url(text);
    EXPECT_TRUE(std::holds_alternative<Failure>(url)) << text.substr(0, 80);
  }
}

}  // namespace
}  // namespace millrace
