#include <curl/curl.h>
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
      {"http://example.org/a.jpg#x y", "http://example.org:80", "/a.jpg"},
      {"http://example.org?x=1#a#b c", "http://example.org:80", "/?x=1"},
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

#if LIBCURL_VERSION_NUM >= 0x075800
TEST(Url, NamesBeyondAsciiAreThoseOfResolvers) {
  if (!(curl_version_info(CURLVERSION_NOW)->features & CURL_VERSION_IDN)) GTEST_SKIP() << "no libidn2 in this libcurl";
  struct {
    const char *text, *host, *whole;
  } const cases[] = {
      {"http://m\xC3\xBCnchen.test/x", "xn--mnchen-3ya.test", "http://xn--mnchen-3ya.test/x"},
      {"https://M\xC3\x9CNCHEN.test:8443/", "xn--mnchen-3ya.test", "https://xn--mnchen-3ya.test:8443/"},
      {"http://m%C3%BCnchen.test/\xC3\xBC", "xn--mnchen-3ya.test", "http://xn--mnchen-3ya.test/%c3%bc"},
      {"http://\xE4\xBE\x8B.test/", "xn--fsq.test", "http://xn--fsq.test/"},
      // U+FF0F, which stands for a slash, ends the name.
      {"http://example.org\xEF\xBC\x8Fx.test/", "example.org", "http://example.org/x.test/"},
  };
  for (const auto& c : cases) {
    const auto url = parse_url(c.text);
    ASSERT_TRUE(std::holds_alternative<Url>(url)) << c.text << ": " << std::get<Failure>(url).message();
    EXPECT_EQ(std::get<Url>(url).host, c.host) << c.text;
    EXPECT_EQ(std::get<Url>(url).text, c.whole) << c.text;
    EXPECT_TRUE(std::get<Url>(url).origin.find(c.host) != std::string::npos) << c.text;
  }
  const auto user = parse_url("http://user\xEF\xBC\xA0www.example.org/");  // U+FF20, which stands for @
  ASSERT_TRUE(std::holds_alternative<Failure>(user));
  EXPECT_EQ(std::get<Failure>(user).kind, FailureKind::refused);
  const auto none = parse_url("http://-\xC3\xBC-.test/");
  ASSERT_TRUE(std::holds_alternative<Failure>(none));
  EXPECT_EQ(std::get<Failure>(none).message(), "bad URL: not the name of a host");
}
#endif

TEST(Url, ARedirectIsRelativeToItsPage) {
  const std::string page = "http://example.org:81/a/b?c";
  EXPECT_EQ(absolute_url(page, "d e.jpg"), "http://example.org:81/a/d%20e.jpg");
  EXPECT_EQ(absolute_url(page, "/d"), "http://example.org:81/d");
  EXPECT_EQ(absolute_url(page, "//example.com/d"), "http://example.com/d");
  EXPECT_EQ(absolute_url(page, "https://example.com/d"), "https://example.com/d");
  EXPECT_EQ(absolute_url(page, "file:///etc/passwd"), "file:///etc/passwd");
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
