#include <gtest/gtest.h>

#include "robots.h"

namespace millrace {
namespace {

bool allows(const std::string& rules, const std::string& path) {
  return Robots("User-agent: *\n" + rules, "millrace").allows(path);
}

// The examples of RFC 9309, sections 2.2.2, 2.2.3 and 5.
TEST(Robots, ExamplesOfTheRfc) {
  const Robots simple(
      "User-Agent: *\nDisallow: *.gif$\nDisallow: /example/\nAllow: /publications/\n\n"
      "User-Agent: foobot\nDisallow:/\nAllow:/example/page.html\nAllow:/example/allowed.gif\n\n"
      "User-Agent: barbot\nUser-Agent: bazbot\nDisallow: /example/page.html\n\nUser-Agent: quxbot\n",
      "millrace");
  EXPECT_FALSE(simple.allows("/a/picture.gif"));
  EXPECT_TRUE(simple.allows("/a/picture.gif?x"));
  EXPECT_FALSE(simple.allows("/example/"));
  EXPECT_TRUE(simple.allows("/publications/"));
  EXPECT_TRUE(simple.allows("/"));

  const std::string text =
      "User-Agent: foobot\nDisallow:/\nAllow:/example/page.html\nAllow:/example/allowed.gif\n\n"
      "User-Agent: barbot\nUser-Agent: bazbot\nDisallow: /example/page.html\n\nUser-Agent: quxbot\n\n"
      "User-Agent: *\nDisallow: /\n";
  EXPECT_TRUE(Robots(text, "foobot").allows("/example/page.html"));
  EXPECT_FALSE(Robots(text, "foobot").allows("/example/other"));
  EXPECT_FALSE(Robots(text, "bazbot").allows("/example/page.html"));
  EXPECT_TRUE(Robots(text, "bazbot").allows("/other"));

  const Robots longest("User-Agent: foobot\nAllow: /example/page/\nDisallow: /example/page/disallowed.gif\n", "foobot");
  EXPECT_TRUE(longest.allows("/example/page/"));
  EXPECT_FALSE(longest.allows("/example/page/disallowed.gif"));

  EXPECT_FALSE(allows("Disallow: /path/file-with-a-%2A.html", "/path/file-with-a-*.html"));
  EXPECT_TRUE(allows("Disallow: /path/file-with-a-%2A.html", "/path/file-with-a-b.html"));
  EXPECT_FALSE(allows("Disallow: /path/foo-%24", "/path/foo-$"));
  EXPECT_FALSE(allows("Disallow: /foo/bar?baz=https://foo.bar", "/foo/bar?baz=https://foo.bar"));
  EXPECT_FALSE(allows("Disallow: /foo/bar/\xE3\x83\x84", "/foo/bar/%E3%83%84"));
  EXPECT_FALSE(allows("Disallow: /foo/bar/%e3%83%84", "/foo/bar/\xE3\x83\x84"));
  EXPECT_FALSE(allows("Disallow: /foo/bar/%62%61%7A", "/foo/bar/baz"));
}

// Half a megabyte of rules that all fit up to their ends.
TEST(Robots, AFileThatWouldTakeSecondsForbids) {
  std::string rules;
  for (int i = 0; i < 36'000; ++i) rules += "Allow: /*a*b\n";
  EXPECT_TRUE(allows(rules, "/" + std::string(200, 'a')));
  EXPECT_FALSE(allows(rules, "/" + std::string(8000, 'a'))) << "nobody has the time to look";
  EXPECT_TRUE(allows("Allow: /*a*b\n", "/" + std::string(8000, 'a')));
}

// The path-matching table and the order-of-precedence table of Google's specification of robots.txt.
TEST(Robots, ExamplesOfGoogle) {
  struct {
    const char* pattern;
    std::vector<const char*> matching, other;
  } const cases[] = {
      {"/fish",
       {"/fish", "/fish.html", "/fish/salmon.html", "/fishheads", "/fish.php?id=anything"},
       {"/Fish.asp", "/catfish", "/?id=fish", "/desert/fish"}},
      {"/fish*", {"/fish", "/fish.html", "/fishheads/yummy.html"}, {"/Fish.asp", "/catfish"}},
      {"/fish/", {"/fish/", "/fish/?id=anything", "/fish/salmon.htm"}, {"/fish", "/fish.html", "/animals/fish/"}},
      {"/*.php",
       {"/index.php", "/filename.php", "/folder/filename.php?parameters", "/folder/any.php.file.html",
        "/filename.php/"},
       {"/", "/windows.PHP"}},
      {"/*.php$",
       {"/filename.php", "/folder/filename.php"},
       {"/filename.php?parameters", "/filename.php/", "/windows.PHP"}},
      {"/fish*.php", {"/fish.php", "/fishheads/catfish.php?parameters"}, {"/Fish.PHP"}},
      {"/", {"/", "/anything"}, {}},
      {"/$", {"/"}, {"/page.html"}},
      {"*", {"/", "/x"}, {}},
      {"/a*b*c$", {"/abc", "/a-b-c", "/aXbXcXc"}, {"/abcd", "/acb", "/ab"}},
      {"/ab*b$", {"/abb", "/ab-b"}, {"/ab"}},
  };
  for (const auto& c : cases) {
    for (const char* path : c.matching)
      EXPECT_FALSE(allows(std::string("Disallow: ") + c.pattern, path)) << c.pattern << " " << path;
    for (const char* path : c.other)
      EXPECT_TRUE(allows(std::string("Disallow: ") + c.pattern, path)) << c.pattern << " " << path;
  }
  EXPECT_TRUE(allows("Allow: /p\nDisallow: /", "/page"));
  EXPECT_TRUE(allows("Allow: /folder\nDisallow: /folder", "/folder/page"));
  EXPECT_FALSE(allows("Allow: /page\nDisallow: /*.htm", "/page.htm"));
  EXPECT_TRUE(allows("Allow: /page\nDisallow: /*.ph", "/page.php5"));
  EXPECT_TRUE(allows("Allow: /$\nDisallow: /", "/"));
  EXPECT_FALSE(allows("Allow: /$\nDisallow: /", "/page.htm"));
}

TEST(Robots, TheGroupThatNamesUsWins) {
  const std::string text =
      "# all\r\nUSER-AGENT: *\r\nDisallow: /\r\n\r\nuser-agent: Millrace/2.0 # us\r\nDisallow: /private\r\n"
      "User-agent: other\r\nDisallow: /\r\nUser-agent: millrace\r\nDisallow: /second\r\n";
  const Robots robots(text, "millrace");
  EXPECT_TRUE(robots.allows("/public"));
  EXPECT_FALSE(robots.allows("/private"));
  EXPECT_FALSE(robots.allows("/second/x"));  // groups of one name are one
  EXPECT_FALSE(Robots(text, "somebody").allows("/public"));
  EXPECT_TRUE(Robots("User-agent: millraces\nDisallow: /\n", "millrace").allows("/x"));
  EXPECT_TRUE(Robots("User-agent: millrace\nUser-agent: *\nDisallow:\n", "millrace").allows("/x"));
}

TEST(Robots, OddFilesAreNoReasonToStop) {
  EXPECT_TRUE(Robots("", "millrace").allows("/x"));
  EXPECT_TRUE(Robots("<html>not a robots.txt</html>", "millrace").allows("/x"));
  EXPECT_TRUE(Robots("Disallow: /\n", "millrace").allows("/x"));  // a rule before any group
  EXPECT_FALSE(Robots("\xEF\xBB\xBFUser-agent: *\nDisallow: /\n", "millrace").allows("/x"));
  EXPECT_FALSE(Robots("User-agent: *\rDisallow: /\r", "millrace").allows("/x"));
  EXPECT_FALSE(Robots("User-agent: *\nCrawl-delay: 3\nSitemap: http://x/\nDisallow: /", "millrace").allows("/x"));
  EXPECT_TRUE(Robots("User-agent: *\nDisallow: /", "millrace").allows("/robots.txt"));
  EXPECT_TRUE(Robots(std::string("User-agent: *\0\nDisallow /", 26), "millrace").allows("/x"));
  const Robots stars("User-agent: *\nDisallow: /" + std::string(100'000, '*') + "x\n", "millrace");
  EXPECT_TRUE(stars.allows("/" + std::string(8000, 'y')));
}

TEST(RobotsCache, ForgetsAfterAWhileAndTheOldestFirst) {
  RobotsCache cache(std::chrono::minutes(5));
  const auto now = RobotsCache::Clock::now();
  EXPECT_EQ(cache.find("a", now), nullptr);
  cache.store("a", Robots(), now);
  cache.store("b", Failure{FailureKind::timeout, ""}, now);
  EXPECT_TRUE(std::holds_alternative<Robots>(*cache.find("a", now + std::chrono::hours(23))));
  EXPECT_EQ(cache.find("a", now + std::chrono::hours(25)), nullptr);
  EXPECT_TRUE(std::holds_alternative<Failure>(*cache.find("b", now)));
  EXPECT_EQ(cache.find("b", now + std::chrono::minutes(6)), nullptr);
  cache.forget_failures();
  EXPECT_EQ(cache.find("b", now), nullptr);
  EXPECT_NE(cache.find("a", now), nullptr);
  for (int i = 0; i < 50'000; ++i) cache.store(std::to_string(i), Robots(), now);
  EXPECT_EQ(cache.find("a", now), nullptr);
  EXPECT_NE(cache.find("49999", now), nullptr);
}

}  // namespace
}  // namespace millrace
