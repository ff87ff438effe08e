#include <curl/curl.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <atomic>
#include <cstdlib>

#include "millrace/core/error.h"
#include "millrace/download/fetcher.h"
#include "own_log.h"
#include "server.h"

namespace {

// Until it is let go, or for 100 s, slow.invalid is looked for; how often nobody has known it.
std::atomic<bool> let_name_go = false;
std::atomic<int> names_unknown = 0;
std::atomic<int> unknown_asked = 0;  // look-ups of unknown.invalid

}  // namespace

// The system's, which libcurl calls, but for a name whose servers take their time.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  if (name && std::string_view(name) == "unknown.invalid") {
    ++unknown_asked;
    return EAI_NONAME;
  }
  if (name && std::string_view(name) == "xn--mnchen-3ya.invalid") name = "127.0.0.1";
  if (!name || std::string_view(name) != "slow.invalid") return real(name, service, hints, found);
  for (int i = 0; i < 10'000 && !let_name_go; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ++names_unknown;
  return EAI_AGAIN;
}

namespace millrace::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Loopback is open, so that the tests' servers can be asked; they may take long where the machine is busy.
FetchOptions options() {
  FetchOptions options;
  options.user_agent = "test";
  options.timeout_seconds = 100;
  options.max_bytes = 100'000;
  options.retries = 0;
  options.backoff_seconds = 0.02;
  options.opt_out = false;
  options.allow_networks = {*Network::parse("127.0.0.1/32")};
  return options;
}

FetchOptions with_timeout(double seconds) {
  FetchOptions how = options();
  how.timeout_seconds = seconds;
  return how;
}

std::map<std::uint64_t, std::variant<std::string, Failure>> fetch_all(Fetcher& fetcher,
                                                                      const std::vector<std::string>& urls) {
  for (std::size_t i = 0; i < urls.size(); ++i) fetcher.add(i, urls[i]);
  std::map<std::uint64_t, std::variant<std::string, Failure>> results;
  const auto limit = Clock::now() + 200s;
  while (fetcher.pending() > 0 && Clock::now() < limit)
    for (Fetched& fetched : fetcher.poll(50ms)) results.emplace(fetched.ticket, std::move(fetched.result));
  EXPECT_EQ(results.size(), urls.size());
  return results;
}

std::variant<std::string, Failure> fetch(const std::string& url, const FetchOptions& how = options()) {
  Fetcher fetcher(how);
  return fetch_all(fetcher, {url}).at(0);
}

// "body: ..." or the failure's message.
std::string outcome(const std::variant<std::string, Failure>& result) {
  const auto* const body = std::get_if<std::string>(&result);
  return body ? "body: " + *body : std::get<Failure>(result).message();
}

std::string kind(const std::variant<std::string, Failure>& result) {
  const auto* const failure = std::get_if<Failure>(&result);
  return failure ? to_string(failure->kind) : "body";
}

const TestServer::Answer hello = [](const std::string&, Client& client) { client.answer(200, "hello"); };

TEST(Fetcher, BringsBodiesOverConnectionsThatStayOpen) {
  TestServer server([](const std::string& path, Client& client) { client.answer(200, path); });
  Fetcher fetcher(options());
  std::vector<std::string> urls;
  for (int i = 0; i < 200; ++i) urls.push_back(server.url("/" + std::to_string(i)));
  for (const auto& [ticket, result] : fetch_all(fetcher, urls))
    EXPECT_EQ(outcome(result), "body: /" + std::to_string(ticket));
  EXPECT_LE(server.connections(), 2);
}

TEST(Fetcher, AsksOneHostForFewThingsAtOnce) {
  for (const int per_host : {1, 3}) {
    FetchOptions how = options();
    how.per_host = per_host;
    TestServer slow([](const std::string&, Client& client) {
      client.pause(10ms);
      client.answer(200, "x");
    });
    Fetcher fetcher(how);
    fetch_all(fetcher, std::vector<std::string>(12, slow.url("/")));
    EXPECT_EQ(slow.max_at_once(), per_host);
  }
}

TEST(Fetcher, AHostHasItsPlacesWhateverThePort) {
  std::atomic<int> at_once = 0, most = 0;
  const TestServer::Answer count = [&](const std::string&, Client& client) {
    const int now = ++at_once;
    if (now > most) most = now;
    client.pause(10ms);
    --at_once;
    client.answer(200, "x");
  };
  TestServer one(count), other(count);
  FetchOptions how = options();
  how.per_host = 1;
  std::vector<std::string> urls;
  for (int i = 0; i < 6; ++i) urls.push_back((i % 2 ? one : other).url("/"));
  Fetcher fetcher(how);
  for (const auto& [ticket, result] : fetch_all(fetcher, urls)) EXPECT_EQ(outcome(result), "body: x");
  EXPECT_EQ(most, 1);
}

TEST(Fetcher, SaysHonestlyWhoItIsAndNothingElse) {
  TestServer server(hello);
  FetchOptions how = options();
  how.user_agent = "millrace-test/1";
  EXPECT_EQ(outcome(fetch(server.url("/"), how)), "body: hello");
  EXPECT_NE(server.last_request().find("User-Agent: millrace-test/1"), std::string::npos);
  for (const char* header : {"Cookie", "Authorization", "Referer"})
    EXPECT_EQ(server.last_request().find(header), std::string::npos) << header;
}

// ------------------------------------------------------------------------------------------------ private addresses

TEST(Fetcher, LoopbackIsNotAskedUnderAnyName) {
  TestServer server(hello);
  FetchOptions how = options();
  how.allow_networks.clear();
  const std::string port = ":" + std::to_string(server.port());
  for (const char* host : {"127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "[::1]",
                           "[::ffff:127.0.0.1]", "0.0.0.0", "[::]", "LOCALHOST", "127.255.255.254"}) {
    const auto result = fetch("http://" + (host + port) + "/", how);
    EXPECT_EQ(kind(result), "address refused") << host << ": " << outcome(result);
  }
  EXPECT_EQ(server.connections(), 0);
}

TEST(Fetcher, PrivateAndSpecialAddressesAreNotAsked) {
  Fetcher fetcher(options());
  const std::vector<std::string> urls = {"http://10.0.0.1/",
                                         "http://172.16.0.1/",
                                         "http://192.168.0.1/",
                                         "http://169.254.169.254/latest/meta-data/",
                                         "http://100.64.0.1/",
                                         "http://100.100.100.200/",
                                         "http://0.0.0.0/",
                                         "http://224.0.0.1/",
                                         "http://255.255.255.255/",
                                         "http://[fc00::1]/",
                                         "http://[fe80::1]/",
                                         "http://[ff02::1]/",
                                         "http://[::ffff:10.0.0.1]/",
                                         "http://[64:ff9b::a9fe:a9fe]/",
                                         "http://[2002:7f00:1::]/",
                                         "http://[2001:db8::1]/",
                                         "http://[fd00:ec2::254]/",
                                         "https://127.0.0.2/",
                                         "http://8.8.8.8:22/",
                                         "http://8.8.8.8:8080/",
                                         "https://[2606:4700::1111]:8443/"};
  for (const auto& [ticket, result] : fetch_all(fetcher, urls))
    EXPECT_EQ(kind(result), "address refused") << urls[ticket] << " " << outcome(result);
}

TEST(Fetcher, RedirectsAreCheckedHopByHop) {
  TestServer secret(hello, "127.0.0.2");
  std::string target;
  TestServer server(
      [&](const std::string&, Client& client) { client.answer(302, "", "Location: " + target + "\r\n"); });
  for (const std::string& to :
       {secret.url("/"), std::string("http://169.254.169.254/"),
        std::string("//127.0.0.2:" + std::to_string(secret.port())), std::string("file:///etc/passwd"),
        std::string("gopher://127.0.0.1:6379/_x"), std::string("ftp://example.org/"),
        std::string("dict://127.0.0.1:11211/"), std::string("http://user:word@127.0.0.1/"),
        std::string("http://10.0.0.1/"), std::string("http://[::1]/"), std::string("http://127.0.0.3/")}) {
    target = to;
    EXPECT_EQ(kind(fetch(server.url("/"))), "address refused") << to;
  }
  EXPECT_EQ(secret.connections(), 0);
}

TEST(Fetcher, ProxiesOfTheEnvironmentPlayNoPart) {
  TestServer proxy(hello), server(hello);
  for (const char* name : {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"})
    ::setenv(name, proxy.url("").c_str(), 1);
  EXPECT_EQ(outcome(fetch(server.url("/"))), "body: hello");
  FetchOptions closed = options();
  closed.allow_networks.clear();
  EXPECT_EQ(kind(fetch("http://10.0.0.1/", closed)), "address refused");
  for (const char* name : {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"}) ::unsetenv(name);
  EXPECT_EQ(proxy.connections(), 0);
}

// ------------------------------------------------------------------------------------------------------- redirects

TEST(Fetcher, FollowsFiveRedirectsAndNoMore) {
  TestServer server([](const std::string& path, Client& client) {
    const int left = std::stoi(path.substr(1));
    if (left == 0) return client.answer(200, "end");
    client.answer(left % 2 ? 301 : 307, "", "Location: " + std::to_string(left - 1) + "\r\n");  // relative
  });
  EXPECT_EQ(outcome(fetch(server.url("/5"))), "body: end");
  EXPECT_EQ(kind(fetch(server.url("/6"))), "redirects");
}

#if LIBCURL_VERSION_NUM >= 0x075800
TEST(Fetcher, NamesBeyondAsciiAreLookedUp) {
  if (!(curl_version_info(CURLVERSION_NOW)->features & CURL_VERSION_IDN)) GTEST_SKIP() << "no libidn2 in this libcurl";
  std::string named;
  TestServer server([&](const std::string& path, Client& client) {
    if (path == "/moved") return client.answer(302, "", "Location: " + named + "\r\n");
    client.answer(200, path == "/robots.txt" ? "User-agent: *\nDisallow: /private\n" : "hello");
  });
  const std::string site = "http://m\xC3\xBCnchen.invalid:" + std::to_string(server.port());
  named = site + "/image";
  FetchOptions how = options();
  how.opt_out = true;
  EXPECT_EQ(outcome(fetch(named, how)), "body: hello");
  EXPECT_NE(server.last_request().find("Host: xn--mnchen-3ya.invalid"), std::string::npos) << server.last_request();
  EXPECT_EQ(outcome(fetch(server.url("/moved"), how)), "body: hello");
  EXPECT_EQ(outcome(fetch(site + "/private", how)), "robots.txt: disallowed");
}
#endif

// What a page weighs says nothing about the image.
TEST(Fetcher, PagesOfOtherAnswersAreNotTooLarge) {
  std::atomic<int> asked{0};
  const std::string page(200'000, 'x');
  TestServer server([&](const std::string& path, Client& client) {
    if (path == "/image") return client.answer(200, "hello");
    if (path == "/busy" && ++asked > 1) return client.answer(200, "at last");
    if (path == "/busy") return client.answer(503, page);
    if (path == "/moved") return client.answer(302, page, "Location: /image\r\n");
    client.send("HTTP/1.1 301 Moved\r\n" + std::string(path == "/nowhere" ? "" : "Location: image\r\n") + "\r\n");
    while (client.send(page)) {
    }
  });
  FetchOptions how = options();
  how.retries = 1;
  EXPECT_EQ(outcome(fetch(server.url("/busy"), how)), "body: at last");
  for (const char* path : {"/moved", "/endless"}) EXPECT_EQ(outcome(fetch(server.url(path))), "body: hello") << path;
  EXPECT_EQ(outcome(fetch(server.url("/nowhere"))), "redirects: to nowhere");
}

TEST(Fetcher, RedirectsToNowhereAndInCirclesEnd) {
  TestServer server([](const std::string& path, Client& client) {
    client.answer(302, "", path == "/circle" ? "Location: /circle\r\n" : "");
  });
  EXPECT_EQ(kind(fetch(server.url("/circle"))), "redirects");
  EXPECT_EQ(kind(fetch(server.url("/nowhere"))), "redirects");
}

// ---------------------------------------------------------------------------------------------------- hostile bodies

TEST(Fetcher, ASlowBodyIsCutAtTheDeadline) {
  TestServer server([](const std::string& path, Client& client) {
    if (path == "/silent") return void(client.pause(20s));
    if (path == "/headers") {
      client.send("HTTP/1.1 200 OK\r\n");
      while (client.pause(50ms) && client.send("X: y\r\n")) {
      }
    }
    client.send("HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n");
    while (client.pause(50ms) && client.send("x")) {
    }
  });
  for (const char* path : {"/body", "/headers", "/silent"}) {
    const auto start = Clock::now();
    EXPECT_EQ(outcome(fetch(server.url(path), with_timeout(1))), "timeout") << path;
    EXPECT_LT(Clock::now() - start, 60s) << path;
  }
}

TEST(Fetcher, AHostThatNeverAnswersIsNotAskedForEveryRow) {
  std::atomic<int> asked = 0;
  TestServer silent([&](const std::string&, Client& client) {
    ++asked;
    client.reset();
  });
  TestServer answers(hello);
  FetchOptions how = options();
  how.retries = 1;
  std::vector<std::string> urls(60, silent.url("/x"));
  urls.push_back(answers.url("/y"));
  Fetcher fetcher(how);
  const auto results = fetch_all(fetcher, urls);
  EXPECT_LE(asked, 12) << "five rows twice, and two that were on their way";
  EXPECT_EQ(outcome(results.at(60)), "body: hello");
  for (int row = 0; row < 60; ++row) EXPECT_TRUE(is_retryable(std::get<Failure>(results.at(row)))) << row;
  EXPECT_EQ(outcome(results.at(59)), "connection: the host does not answer");
}

TEST(Fetcher, ASlowNameHoldsUpNobodyElse) {
  if (LIBCURL_VERSION_NUM < 0x075700 || curl_version_info(CURLVERSION_NOW)->version_num < 0x075700) {
    let_name_go = true;
    GTEST_SKIP() << "libcurl before 7.87 waits for the name when it gives a transfer up (docs/downloading.md)";
  }
  TestServer server(hello);
  {
    Fetcher fetcher(options());
    fetcher.add(0, "http://slow.invalid/");
    fetcher.add(1, server.url("/"));
    std::string other;
    while (other.empty())
      for (const Fetched& fetched : fetcher.poll(50ms))
        if (fetched.ticket == 1) other = outcome(fetched.result);
    EXPECT_EQ(other, "body: hello");
  }
  EXPECT_EQ(outcome(fetch("http://slow.invalid/", with_timeout(1))), "timeout");
  EXPECT_EQ(names_unknown, 0) << "the name is still looked for";
  let_name_go = true;
}

TEST(Fetcher, ANameThatNobodyKnowsIsLookedUpOnceMoreAtMost) {
  FetchOptions how = options();
  how.retries = 4;
  EXPECT_EQ(kind(fetch("http://unknown.invalid/", how)), "connection");
  EXPECT_GE(unknown_asked, 1);
  EXPECT_LE(unknown_asked, 2);
}

TEST(Fetcher, AForgivenHostIsAskedAgain) {
  std::atomic<bool> is_away = true;
  TestServer server([&](const std::string& path, Client& client) {
    if (is_away) return client.answer(503, "");
    path == "/robots.txt" ? client.answer(404, "") : client.answer(200, "hello");
  });
  FetchOptions how = options();
  how.opt_out = true;
  Fetcher fetcher(how);
  fetch_all(fetcher, {server.url("/x")});
  is_away = false;
  EXPECT_EQ(kind(fetch_all(fetcher, {server.url("/x")}).at(0)), "connection") << "for five minutes";
  fetcher.forgive_hosts();
  EXPECT_EQ(outcome(fetch_all(fetcher, {server.url("/x")}).at(0)), "body: hello");
}

TEST(Fetcher, WhatIsForgivenDoesNotCountLater) {
  std::atomic<int> asked = 0;
  TestServer server(
      [&](const std::string&, Client& client) { ++asked <= 5 ? client.reset() : client.answer(200, "hello"); });
  FetchOptions how = options();
  how.per_host = 1;
  Fetcher fetcher(how);
  for (int row = 0; row < 8; ++row) fetcher.add(row, server.url("/x"));
  while (fetcher.pending() > 4) fetcher.poll(50ms);
  fetcher.forgive_hosts();  // before the fifth silence in a row
  std::vector<std::string> others;
  while (fetcher.pending() > 0)
    for (const Fetched& fetched : fetcher.poll(50ms)) others.push_back(outcome(fetched.result));
  EXPECT_EQ(std::count(others.begin(), others.end(), "body: hello"), 3);
}

TEST(Fetcher, AHostThatDidNotAnswerIsAskedAgainLater) {
  std::atomic<int> asked = 0;
  TestServer server(
      [&](const std::string&, Client& client) { ++asked <= 5 ? client.reset() : client.answer(200, "hello"); });
  FetchOptions how = options();
  how.per_host = 1;
  how.host_shut_for = 1s;
  Fetcher fetcher(how);
  const auto results = fetch_all(fetcher, std::vector<std::string>(6, server.url("/x")));
  EXPECT_EQ(outcome(results.at(5)), "connection: the host does not answer");
  std::this_thread::sleep_for(how.host_shut_for);
  EXPECT_EQ(outcome(fetch_all(fetcher, {server.url("/x")}).at(0)), "body: hello");
}

TEST(Fetcher, AHostIsForgottenOnceItHasNoRows) {
  TestServer server([](const std::string& path, Client& client) { client.answer(path == "/50" ? 429 : 200, "hello"); },
                    "0.0.0.0");
  FetchOptions how = options();
  how.allow_networks = {*Network::parse("127.0.0.0/8")};
  Fetcher fetcher(how);
  std::vector<std::string> urls;
  for (int i = 0; i < 50; ++i) urls.push_back(url_of_host(server, i));
  fetch_all(fetcher, urls);
  EXPECT_EQ(fetcher.hosts(), 0u);
  fetch_all(fetcher, {url_of_host(server, 50)});  // asks to wait
  for (const auto end = Clock::now() + 20s; fetcher.hosts() > 0 && Clock::now() < end;) fetcher.poll(50ms);
  EXPECT_EQ(fetcher.hosts(), 0u);
}

// The pause of a row that is given up holds for its host as well.
TEST(Fetcher, AHostThatAsksToWaitIsLeftAlone) {
  std::atomic<int> asked = 0;
  std::atomic<Clock::time_point> first, last;
  TestServer server([&](const std::string& path, Client& client) {
    const int number = ++asked;
    (number == 1 ? first : last) = Clock::now();
    if (number > 1) return client.answer(200, "now");
    client.answer(path == "/503" ? 503 : 429, "", path == "/long" ? "Retry-After: 100\r\n" : "Retry-After: 1\r\n");
  });
  FetchOptions how = options();
  how.per_host = 1;
  for (const char* path : {"/429", "/503"}) {
    asked = 0;
    Fetcher fetcher(how);
    fetcher.add(0, server.url(path));
    fetcher.add(1, server.url("/next"));
    while (fetcher.pending() > 0) fetcher.poll(50ms);
    EXPECT_EQ(asked, 2);
    EXPECT_GE(last.load() - first.load(), 1s) << path;
  }
  asked = 0;
  Fetcher fetcher(how);
  for (int row = 0; row < 3; ++row) fetcher.add(row, server.url("/long"));
  while (fetcher.pending() == 3) fetcher.poll(50ms);
  for (const auto end = Clock::now() + 2s; Clock::now() < end;) fetcher.poll(50ms);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(fetcher.pending(), 2u);
}

TEST(Fetcher, AHostIsNotLeftAloneForAsLongAsItLikes) {
  std::atomic<int> asked = 0;
  TestServer server([&](const std::string&, Client& client) {
    ++asked == 1 ? client.answer(429, "", "Retry-After: 1000\r\n") : client.answer(200, "hello");
  });
  FetchOptions how = options();
  how.per_host = 1;
  how.max_pause_seconds = 0.2;
  Fetcher fetcher(how);
  const auto results = fetch_all(fetcher, {server.url("/x"), server.url("/x")});
  EXPECT_EQ(outcome(results.at(0)), "http status: 429");
  EXPECT_EQ(outcome(results.at(1)), "body: hello");
}

// It does not say for how long.
TEST(Fetcher, AHostThatGoesOnAskingToWaitIsLeftAloneForEverLonger) {
  std::atomic<int> asked = 0;
  std::atomic<Clock::time_point> first, last;
  TestServer server([&](const std::string&, Client& client) {
    (++asked == 1 ? first : last) = Clock::now();
    client.answer(429, "");
  });
  FetchOptions how = options();
  how.per_host = 1;
  how.backoff_seconds = 0.1;
  Fetcher fetcher(how);
  const auto results = fetch_all(fetcher, std::vector<std::string>(20, server.url("/x")));
  EXPECT_EQ(asked, 5);
  EXPECT_GE(last.load() - first.load(), 1400ms) << "0.1, 0.2, 0.4 and 0.8 s";
  EXPECT_EQ(outcome(results.at(19)), "http status: 429");
}

// A list that has hardly any other hosts goes at their pace.
TEST(Fetcher, SlowHostsAreLetGoWhereTheyHaveFewOfTheRows) {
  const test::OwnLog log;
  TestServer hangs([](const std::string&, Client& client) { client.pause(20s); });
  TestServer waits([](const std::string&, Client& client) { client.answer(429, "", "Retry-After: 60\r\n"); });
  TestServer quick(hello, "127.0.0.2");
  FetchOptions how = with_timeout(0.3);
  how.per_host = 1;
  how.retries = 10;  // it is slow before it counts as silent
  how.allow_networks = {*Network::parse("127.0.0.0/8")};
  Fetcher fetcher(how);
  for (int row = 0; row < 10; ++row) fetcher.add(row, hangs.url("/x"));
  for (int row = 10; row < 41; ++row) fetcher.add(row, quick.url("/y"));
  while (fetcher.pending() > 0) {
    for (const Fetched& fetched : fetcher.poll(50ms)) {
      if (fetched.ticket >= 10) continue;
      EXPECT_EQ(outcome(fetched.result), "timeout: the host is slow");
      EXPECT_FALSE(fetched.host_is_shut);
    }
    fetcher.let_slow_hosts_go();
  }
  EXPECT_GT(log.count("127.0.0.1 held up all the rest: the "), 0) << log.text();

  how.timeout_seconds = 30;
  Fetcher alone(how);
  for (int row = 0; row < 10; ++row) alone.add(row, waits.url("/x"));
  while (alone.pending() == 10) alone.poll(50ms);
  for (const auto end = Clock::now() + 2s; Clock::now() < end; alone.poll(50ms)) alone.let_slow_hosts_go();
  EXPECT_EQ(alone.pending(), 9u);
}

TEST(Fetcher, TellsRowsThatNobodyWasAskedFor) {
  TestServer hangs([](const std::string&, Client& client) { client.pause(20s); });
  TestServer no_robots([](const std::string&, Client& client) { client.answer(503, ""); });
  TestServer answers([](const std::string& path, Client& client) {
    path == "/robots.txt" ? client.answer(404, "") : client.answer(500, "");
  });
  FetchOptions how = with_timeout(0.2);
  how.per_host = 1;
  const auto count_shut = [&](const std::vector<std::string>& urls) {
    Fetcher fetcher(how);
    for (const std::string& url : urls) fetcher.add(0, url);
    std::size_t shut = 0;
    while (fetcher.pending() > 0)
      for (const Fetched& fetched : fetcher.poll(50ms)) shut += fetched.host_is_shut;
    return shut;
  };
  EXPECT_EQ(count_shut(std::vector<std::string>(20, hangs.url("/x"))), 15u) << "all but five";
  how = options();
  how.opt_out = true;
  EXPECT_EQ(count_shut({no_robots.url("/a"), no_robots.url("/b")}), 2u);
  EXPECT_EQ(count_shut({answers.url("/a"), "no URL", "http://10.0.0.1/"}), 0u) << "their own faults";
}

TEST(Fetcher, ABundleOfCertificatesThatIsNotThereEndsTheRun) {
  TestServer server(hello);
  ::setenv("SSL_CERT_FILE", "/no/such/bundle.pem", 1);
  try {
    fetch("https://127.0.0.1:" + std::to_string(server.port()) + "/");
    ADD_FAILURE() << "not looked for";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_NE(std::string(error.what()).find("/no/such/bundle.pem"), std::string::npos) << error.what();
  }
  ::unsetenv("SSL_CERT_FILE");
}

TEST(Fetcher, TheDeadlineCoversAllRedirects) {
  TestServer server([](const std::string& path, Client& client) {
    client.pause(400ms);
    client.answer(302, "", "Location: " + path + "x\r\n");
  });
  EXPECT_EQ(outcome(fetch(server.url("/"), with_timeout(1))), "timeout");
}

TEST(Fetcher, AnEndlessBodyIsCutAtItsLimit) {
  TestServer server([](const std::string& path, Client& client) {
    const std::string piece(10'000, 'x');
    if (path == "/announced") return client.answer(200, std::string(200'000, 'x'));
    if (path == "/chunked") {
      client.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
      while (client.send("2710\r\n") && client.send(piece) && client.send("\r\n")) {
      }
    } else {
      client.send(path == "/error" ? "HTTP/1.1 404 No\r\n\r\n" : "HTTP/1.1 200 OK\r\n\r\n");
      while (client.send(piece)) {
      }
    }
    client.close();
  });
  for (const char* path : {"/announced", "/chunked", "/until-close"})
    EXPECT_EQ(kind(fetch(server.url(path))), "too large") << path;
  EXPECT_EQ(outcome(fetch(server.url("/error"))), "http status: 404");
}

TEST(Fetcher, EndlessHeadersAreCut) {
  TestServer server([](const std::string&, Client& client) {
    client.send("HTTP/1.1 200 OK\r\n");
    while (client.send("X-Header: " + std::string(1000, 'x') + "\r\n")) {
    }
  });
  EXPECT_EQ(outcome(fetch(server.url("/"))), "too large: headers");
}

// libcurl calls it out of memory.
TEST(Fetcher, AnEndlessHeaderCostsItsRowAlone) {
  TestServer server([](const std::string&, Client& client) {
    client.send("HTTP/1.1 200 OK\r\nX-Header: " + std::string(400'000, 'x'));
    client.close();
  });
  EXPECT_EQ(kind(fetch(server.url("/"))), "connection");
}

TEST(Fetcher, ACompressedBodyStaysAsItIs) {
  const std::string bomb("\x1F\x8B\x08\x00 not to be unpacked", 23);
  TestServer server(
      [&](const std::string&, Client& client) { client.answer(200, bomb, "Content-Encoding: gzip\r\n"); });
  EXPECT_EQ(outcome(fetch(server.url("/"))), "body: " + bomb);
  EXPECT_EQ(server.last_request().find("Accept-Encoding"), std::string::npos);
}

TEST(Fetcher, BrokenAnswersHaveNames) {
  TestServer server([](const std::string& path, Client& client) {
    if (path == "/truncated") client.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
    if (path == "/chunk") client.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nhalf");
    if (path == "/reset") return client.reset();
    if (path == "/garbage") client.send("hello there\r\n\r\n");
    if (path == "/410") return client.answer(410, "gone");
    if (path == "/204") return client.answer(304, "");
    client.close();
  });
  EXPECT_EQ(kind(fetch(server.url("/truncated"))), "truncated body");
  EXPECT_EQ(kind(fetch(server.url("/chunk"))), "truncated body");
  EXPECT_EQ(kind(fetch(server.url("/reset"))), "connection");
  EXPECT_EQ(kind(fetch(server.url("/empty"))), "connection");
  EXPECT_EQ(kind(fetch(server.url("/garbage"))), "connection");
  EXPECT_EQ(outcome(fetch(server.url("/410"))), "http status: 410");
  EXPECT_EQ(outcome(fetch(server.url("/204"))), "http status: 304");
  EXPECT_NE(kind(fetch("http://no-such-host.invalid/", with_timeout(1))), "body");
}

// ---------------------------------------------------------------------------------------------------------- retries

TEST(Fetcher, TriesAgainWhatMayPass) {
  std::atomic<int> asked{0};
  TestServer server([&](const std::string& path, Client& client) {
    const bool third = ++asked % 3 == 0;
    if (third) return client.answer(200, "at last");
    if (path == "/reset") return client.reset();
    if (path == "/truncated") {
      client.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
      return client.close();
    }
    client.answer(std::stoi(path.substr(1)), "");
  });
  FetchOptions how = options();
  how.retries = 2;
  for (const char* path : {"/408", "/429", "/500", "/502", "/503", "/599", "/reset", "/truncated"}) {
    asked = 0;
    EXPECT_EQ(outcome(fetch(server.url(path), how)), "body: at last") << path;
    EXPECT_EQ(asked, 3) << path;
  }
  for (const char* path : {"/400", "/401", "/403", "/404", "/410", "/451"}) {
    asked = 0;
    EXPECT_EQ(kind(fetch(server.url(path), how)), "http status") << path;
    EXPECT_EQ(asked, 1) << path;
  }
}

TEST(Fetcher, WaitsTwiceAsLongBeforeEachFurtherTry) {
  std::atomic<int> asked{0};
  TestServer server([&](const std::string&, Client& client) { client.answer(++asked > 3 ? 200 : 500, "at last"); });
  FetchOptions how = options();
  how.retries = 3;
  how.backoff_seconds = 0.1;
  const auto start = Clock::now();
  EXPECT_EQ(outcome(fetch(server.url("/"), how)), "body: at last");
  EXPECT_GE(Clock::now() - start, 520ms) << "0.1, 0.2 and 0.4 s, of which a quarter may be missing";
}

TEST(Fetcher, WaitsAsLongAsTheServerAsksUpToTenSeconds) {
  std::atomic<int> asked{0};
  TestServer server([&](const std::string& path, Client& client) {
    if (++asked > 1) return client.answer(200, "now");
    client.answer(429, "", path == "/soon" ? "Retry-After: 1\r\n" : "Retry-After: 11\r\n");
  });
  FetchOptions how = options();
  how.retries = 1;
  auto start = Clock::now();
  EXPECT_EQ(outcome(fetch(server.url("/soon"), how)), "body: now");
  EXPECT_GE(Clock::now() - start, 1s);
  asked = 0;
  start = Clock::now();
  EXPECT_EQ(outcome(fetch(server.url("/late"), how)), "http status: 429");
  EXPECT_LT(Clock::now() - start, 10s);
  EXPECT_EQ(asked, 1);
}

// ---------------------------------------------------------------------------------------------------------- opt-outs

TEST(Fetcher, AsksForRobotsOncePerOriginAndObeysIt) {
  TestServer server([](const std::string& path, Client& client) {
    if (path == "/robots.txt") return client.answer(200, "User-agent: *\nDisallow: /private\n");
    client.answer(200, path);
  });
  FetchOptions how = options();
  how.opt_out = true;
  Fetcher fetcher(how);
  const auto results =
      fetch_all(fetcher, {server.url("/a"), server.url("/private/b"), server.url("/c"), server.url("/private")});
  EXPECT_EQ(outcome(results.at(0)), "body: /a");
  EXPECT_EQ(kind(results.at(1)), "robots.txt");
  EXPECT_EQ(outcome(results.at(2)), "body: /c");
  EXPECT_EQ(kind(results.at(3)), "robots.txt");
  fetch_all(fetcher, {server.url("/d")});
  EXPECT_EQ(server.requests().at("/robots.txt"), 1);
  EXPECT_FALSE(server.requests().contains("/private/b"));
}

TEST(Fetcher, RobotsCountsAtEveryHop) {
  TestServer target([](const std::string& path, Client& client) {
    client.answer(200, path == "/robots.txt" ? "User-agent: *\nDisallow: /\n" : "secret");
  });
  TestServer server([&](const std::string& path, Client& client) {
    if (path == "/robots.txt") return client.answer(404, "");
    client.answer(302, "", "Location: " + target.url("/image") + "\r\n");
  });
  FetchOptions how = options();
  how.opt_out = true;
  EXPECT_EQ(kind(fetch(server.url("/"), how)), "robots.txt");
  EXPECT_FALSE(target.requests().contains("/image"));
}

TEST(Fetcher, NoRobotsMeansYesAndABrokenOneMeansNo) {
  FetchOptions how = options();
  how.opt_out = true;
  struct {
    int status;
    const char *moved, *expected;
  } const cases[] = {{404, "", "body"},
                     {403, "", "body"},
                     {401, "", "body"},
                     {408, "", "connection"},
                     {429, "", "connection"},
                     {200, "", "body"},
                     {500, "", "connection"},
                     {503, "", "connection"},
                     {0, "", "connection"},
                     {302, "Location: /elsewhere\r\n", "robots.txt"},
                     {302, "Location: /robots.txt\r\n", "body"}};
  for (const auto& c : cases) {
    TestServer server([&](const std::string& path, Client& client) {
      if (path == "/elsewhere") return client.answer(200, "User-agent: *\nDisallow: /\n");
      if (path != "/robots.txt") return client.answer(200, "image");
      if (c.status == 0) return client.reset();
      client.answer(c.status, std::string(600'000, '#'), c.moved);
    });
    EXPECT_EQ(kind(fetch(server.url("/image"), how)), c.expected) << c.status << c.moved;
  }
}

TEST(Fetcher, HeadersThatForbidUseEndTheTransfer) {
  TestServer server([](const std::string& path, Client& client) {
    if (path == "/robots.txt") return client.answer(404, "");
    if (path == "/tag") return client.answer(200, "x", "X-Robots-Tag: noai\r\n");
    if (path == "/other") return client.answer(200, "x", "X-Robots-Tag: otherbot: noai\r\n");
    if (path == "/folded") return client.answer(200, "x", "X-Robots-Tag: nofollow,\r\n noai\r\nX: y\r\n");
    if (path == "/folded-last") return client.answer(200, "x", "X-Robots-Tag:\r\n\tnofollow,\r\n\tnoai\r\n");
    if (path == "/folded-other") return client.answer(200, "x", "X: X-Robots-Tag:\r\n noai\r\n");
    client.answer(200, "x", "tdm-reservation: 1\r\n");
  });
  FetchOptions how = options();
  how.opt_out = true;
  how.retries = 2;
  EXPECT_EQ(outcome(fetch(server.url("/tag"), how)), "opted out: X-Robots-Tag");
  EXPECT_EQ(outcome(fetch(server.url("/tdm"), how)), "opted out: tdm-reservation");
  for (const char* path : {"/folded", "/folded-last"})
    EXPECT_EQ(outcome(fetch(server.url(path), how)), "opted out: X-Robots-Tag") << path;
  for (const char* path : {"/other", "/folded-other"})
    EXPECT_EQ(outcome(fetch(server.url(path), how)), "body: x") << path;
  EXPECT_EQ(server.requests().at("/tag"), 1);
  EXPECT_EQ(outcome(fetch(server.url("/tag"), options())), "body: x");  // opt_out: false
}

}  // namespace
}  // namespace millrace::test
