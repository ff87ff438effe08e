#include <csignal>
#include <cstdlib>
#include <thread>

#include "http_server.h"
#include "millrace/core/stop.h"
#include "millrace/core/storage_error.h"
#include "millrace/io/net/stream.h"

namespace millrace::test {
namespace {

// Quick retries, so that tests do not wait.
const TransferOptions quick_retries{.retries = 5,
                                    .first_wait = std::chrono::milliseconds(1),
                                    .stall_limit = std::chrono::seconds(30),
                                    .time_limit = std::nullopt};

TEST(Http, ABrokenTransferGoesOnWhereItStopped) {
  const std::string body = read_file(golden("tar/plain.tar"));
  HttpServer server([&](const HttpRequest& request) { return range_answer(request, body, body.size() / 3 + 1); });
  EXPECT_EQ(read_all(*open_stream(server.url() + "/x.tar", quick_retries)), body);
  EXPECT_EQ(server.connections(), 3);
}

// Large files often lie behind an address that is good for a while.
TEST(Http, ARedirectIsFollowedAtEachAttempt) {
  const std::string body = read_file(golden("tar/plain.tar"));
  HttpServer server([&](const HttpRequest& request) {
    return request.path() == "/x.tar" ? http_answer("302 Found", "Location: /y.tar\r\n", 0, "")
                                      : range_answer(request, body, body.size() / 2 + 1);
  });
  EXPECT_EQ(read_all(*open_stream(server.url() + "/x.tar", quick_retries)), body);
  EXPECT_EQ(server.connections(), 4);
}

TEST(Http, AServerWithoutRangeIsReadAgainFromTheFront) {
  const std::string body = read_file(golden("tar/plain.tar"));
  HttpServer server([&](const HttpRequest& request) {
    return http_answer("200 OK", "", body.size(),
                       body.substr(0, request.number < 2 ? 3000 * (request.number + 1) : SIZE_MAX));
  });
  EXPECT_EQ(read_all(*open_stream(server.url() + "/x.tar", quick_retries)), body);
}

// What is made while it is sent has no length at first, and may have one by the second attempt.
TEST(Http, ABrokenTransferInChunksGoesOnWhereItStopped) {
  const std::string body = read_file(golden("tar/plain.tar")), tag = "ETag: \"1\"\r\n";
  HttpServer server([&](const HttpRequest& request) {
    if (request.has_range()) return range_answer(request, body, SIZE_MAX, tag);
    return fmt::format("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n{}\r\n{:x}\r\n", tag,
                       body.size()) +
           body.substr(0, body.size() / 2);
  });
  EXPECT_EQ(read_all(*open_stream(server.url() + "/x.tar", quick_retries)), body);
  EXPECT_EQ(server.connections(), 2);
}

// Many servers give no ETag, and tell when the file was changed.
TEST(Http, ABrokenTransferGoesOnByTheTimeOfTheFile) {
  const std::string body = read_file(golden("tar/plain.tar"));
  for (const bool is_changed : {false, true}) {
    HttpServer server([&](const HttpRequest& request) {
      const std::string time =
          fmt::format("Last-Modified: Tue, 01 Dec 2026 13:0{}:00 GMT\r\n", is_changed ? request.number : 0);
      if (request.has_range()) return range_answer(request, body, SIZE_MAX, time);
      return fmt::format("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n{}\r\n{:x}\r\n", time,
                         body.size()) +
             body.substr(0, body.size() / 2);
    });
    const auto stream = open_stream(server.url() + "/x.tar", quick_retries);
    if (is_changed)
      EXPECT_THROW(read_all(*stream), StorageError);
    else
      EXPECT_EQ(read_all(*stream), body);
  }
}

// By a server or a cache between that answers with another range than was asked for, and says so.
TEST(Http, AnAnswerIsTheRangeThatItSaysItIs) {
  const std::string body = read_file(golden("tar/plain.tar"));
  const auto answer_with = [&](std::size_t first, std::size_t last) {
    const std::string headers =
        fmt::format("ETag: \"1\"\r\nContent-Range: bytes {}-{}/{}\r\n", first, last, body.size());
    const auto part = body.substr(first, last + 1 - first);
    return http_answer("206 Partial Content", headers, part.size(), part);
  };
  const std::string begin = fmt::format(
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\nETag: \"1\"\r\n\r\n{:x}\r\n", body.size());
  for (const bool is_earlier : {true, false}) {
    HttpServer server([&](const HttpRequest& request) {
      if (!request.has_range()) return begin + body.substr(0, 1000);
      const auto [first, last] = request.range(body.size());
      return is_earlier ? answer_with(first - 300, last) : answer_with(first, std::min(last, first + body.size() / 3));
    });
    EXPECT_EQ(read_all(*open_stream(server.url() + "/x.tar", quick_retries)), body) << is_earlier;
  }
}

// The second answer tells a length that the first did not.
TEST(Http, ARestInChunksNeedsNoTagWhereItTellsTheWhole) {
  const std::string body = read_file(golden("tar/plain.tar"));
  HttpServer server([&](const HttpRequest& request) {
    const auto [first, last] = request.range(body.size());
    const bool is_rest = request.has_range();
    const auto status =
        is_rest ? fmt::format("206 Partial Content\r\nContent-Range: bytes {}-{}/{}", first, last, body.size())
                : std::string("200 OK");
    const auto rest = body.substr(first);
    return fmt::format("HTTP/1.1 {}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n{:x}\r\n", status,
                       rest.size()) +
           (is_rest ? rest + "\r\n0\r\n\r\n" : rest.substr(0, rest.size() / 2));
  });
  EXPECT_EQ(read_all(*open_stream(server.url() + "/x.tar", quick_retries)), body);
}

TEST(Http, AFileThatChangesWhileItIsReadIsAnError) {
  const std::string before(5000, 'a');
  struct {
    std::size_t size;
    const char* tag;
    bool begins_in_chunks = false;
  } const changes[] = {{5000, "ETag: \"2\"\r\n"}, {5001, "ETag: \"1\"\r\n"}, {5000, "", true}};
  for (const auto& change : changes) {
    const std::string after(change.size, 'b');
    HttpServer server([&](const HttpRequest& request) -> std::string {
      if (request.number > 0) return range_answer(request, after, SIZE_MAX, change.tag);
      if (change.begins_in_chunks)  // and nothing tells that it is still the same
        return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n" + before.substr(0, 100) + "\r\n";
      return range_answer(request, before, 100, "ETag: \"1\"\r\n");
    });
    const auto stream = open_stream(server.url() + "/x.tar", quick_retries);
    try {
      read_all(*stream);
      ADD_FAILURE() << change.size << " bytes, " << change.tag;
    } catch (const StorageError& error) {  // who reads it anew may get the whole of one content
      EXPECT_NE(std::string(error.what()).find("changed"), std::string::npos) << error.what();
    }
  }
}

TEST(Http, AnAddressIsSentAsABrowserSendsIt) {
  HttpServer server([](const HttpRequest& request) { return range_answer(request, request.path()); });
  EXPECT_EQ(read_all(*open_stream(server.url() + "/a b/\u00e9%20.jpg?x=1 2", quick_retries)),
            "/a%20b/%c3%a9%20.jpg?x=1%202");
}

TEST(Http, EachRetryIsWaitedForTwiceAsLong) {
  HttpServer server([](const HttpRequest&) { return http_answer("503 Service Unavailable", "", 0, ""); });
  TransferOptions options = quick_retries;
  options.retries = 3;
  options.first_wait = std::chrono::milliseconds(100);
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_THROW(read_all(*open_stream(server.url() + "/x", options)), StorageError);
  EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(700)) << "0.1, 0.2 and 0.4 s";
}

TEST(Http, RetryAfterIsHonoured) {
  HttpServer server([](const HttpRequest& request) {
    return request.number == 0 ? http_answer("429 Too Many Requests", "Retry-After: 2\r\n", 0, "")
                               : range_answer(request, "body");
  });
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(read_all(*open_stream(server.url() + "/x", quick_retries)), "body");
  EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::seconds(1));
}

TEST(Http, ALongRetryAfterIsWaitedForUnlessItIsTooLong) {
  HttpServer server(
      [](const HttpRequest& request) { return http_answer("429 Too Many Requests", "Retry-After: 100\r\n", 0, ""); });
  TransferOptions limited = quick_retries;
  limited.time_limit = std::chrono::seconds(90);
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_THROW(read_all(*open_stream(server.url() + "/x", limited)), StorageError);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(50)) << "not after 90 s, for nothing";
  // Without a limit it waits, and a stop ends that. In a process of its own: a fork beside the server's threads has no
  // more of them.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::jthread signal([] {
          std::this_thread::sleep_for(std::chrono::seconds(1));
          stop::request(SIGTERM);
        });
        try {
          read_all(*open_stream(server.url() + "/x", quick_retries));
        } catch (const StorageError& error) {
          std::exit(std::string(error.what()).find("asked to stop") != std::string::npos ? 3 : 1);
        }
      },
      testing::ExitedWithCode(3), "");
}

TEST(Http, ServerTroubleIsRetriedAndRefusalsAreNot) {
  for (const auto& [status, retried] : std::vector<std::pair<std::string, bool>>{{"503 Service Unavailable", true},
                                                                                 {"429 Too Many Requests", true},
                                                                                 {"404 Not Found", false},
                                                                                 {"403 Forbidden", false}}) {
    HttpServer server([&](const HttpRequest& request) {
      return request.number < 2 ? http_answer(status, "", 0, "") : range_answer(request, "body");
    });
    const auto stream = open_stream(server.url() + "/x.tar", quick_retries);
    if (retried) {
      EXPECT_EQ(read_all(*stream), "body") << status;
    } else {
      const Error error = error_of([&] { read_all(*stream); });
      EXPECT_EQ(error.exit(), Exit::io);
      EXPECT_NE(std::string(error.what()).find(status.substr(0, 3)), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(server.url() + "/x.tar"), std::string::npos) << error.what();
      EXPECT_EQ(server.connections(), 1) << status;
    }
  }
}

// A portal's page, or "come again", is not an archive that is damaged: it may be there later.
TEST(Http, WhatIsNoArchiveIsNotReadAsOne) {
  const std::string page = "Content-Type: text/html; charset=utf-8\r\n";
  struct {
    const char *status, *body;
    std::string header;
    const char* why;
  } const cases[] = {{"200 OK", "<html>", page, "answers with a page"},
                     {"200 OK", "\xEF\xBB\xBF\n <!doctype html>", page, "answers with a page"},
                     {"202 Accepted", "{}", "", "answers with status 202"},
                     {"204 No Content", "", "", "answers with status 204"},
                     {"302 Found", "", "", "answers with status 302"}};
  for (const auto& [status, body, header, why] : cases) {
    HttpServer server([&, &status = status, &body = body, &header = header](const HttpRequest&) {
      return http_answer(status, header, std::string(body).size(), body);
    });
    try {
      read_all(*open_stream(server.url() + "/x.tar", quick_retries));
      ADD_FAILURE() << status;
    } catch (const StorageError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  }
}

TEST(Http, AnArchiveMayBeCalledAPage) {
  HttpServer server([](const HttpRequest& request) {
    return range_answer(request, "00001.jpg <and so on>", SIZE_MAX, "Content-Type: text/html\r\n");
  });
  EXPECT_EQ(read_all(*open_stream(server.url() + "/x.tar", quick_retries)), "00001.jpg <and so on>");
}

// Nobody answers for a while: that is retried as before, and says why.
TEST(Http, AServerThatDoesNotAnswerGivesNoOddAnswer) {
  HttpServer server(
      [](const HttpRequest& request) { return request.number < 2 ? std::string() : range_answer(request, "body"); });
  EXPECT_EQ(read_all(*open_stream(server.url() + "/x.tar", quick_retries)), "body");
  EXPECT_EQ(server.connections(), 3);
}

TEST(Http, ARestThatIsMissingIsAskedForAgain) {
  const std::string content(5000, 'c');
  HttpServer server([&](const HttpRequest& request) -> std::string {
    if (request.number == 1) return "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nConnection: close\r\n\r\nccc";
    return range_answer(request, content, request.number == 0 ? 100 : SIZE_MAX, "ETag: \"1\"\r\n");
  });
  EXPECT_EQ(read_all(*open_stream(server.url() + "/x.tar", quick_retries)), content);
  EXPECT_EQ(server.connections(), 3);
}

TEST(Http, AProxyThatRefusesIsNotTakenForTheServer) {
  HttpServer proxy([](const HttpRequest&) { return http_answer("407 Proxy Authentication Required", "", 0, ""); });
  for (const auto& [scheme, variable] : {std::pair("http", "http_proxy"), {"https", "https_proxy"}}) {
    ::setenv(variable, proxy.url().c_str(), 1);
    const Error error = error_of([&] { read_all(*open_stream(fmt::format("{}://far.invalid/x", scheme))); });
    ::unsetenv(variable);
    EXPECT_NE(error.hint().find("the proxy asks for a name and a password"), std::string::npos) << error.what();
  }
}

TEST(Http, ATransferThatBreaksTooOftenIsAnError) {
  const std::string body(10000, 'x');
  HttpServer server([&](const HttpRequest& request) { return range_answer(request, body, 100); });
  const auto stream = open_stream(server.url() + "/x.tar", quick_retries);
  const Error error = error_of([&] { read_all(*stream); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("after 600 bytes"), std::string::npos) << error.what();
}

TEST(Http, ProgressMakesUpForFailures) {
  const std::string body(9u << 20, 'x');
  HttpServer server([&](const HttpRequest& request) { return range_answer(request, body, (1u << 20) + 1000); });
  EXPECT_EQ(read_all(*open_stream(server.url() + "/x.tar", quick_retries)).size(), body.size());
}

TEST(Http, AStalledServerAndASlowOneAreGivenUp) {
  HttpServer server([&](const HttpRequest&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    return http_answer("200 OK", "", 4, "body");
  });
  TransferOptions options = quick_retries;
  options.retries = 0;
  options.stall_limit = std::chrono::seconds(1);
  EXPECT_EQ(error_of([&] { read_all(*open_stream(server.url() + "/x", options)); }).exit(), Exit::io);
  options = quick_retries;
  options.time_limit = std::chrono::seconds(1);
  const Error error = error_of([&] { read_all(*open_stream(server.url() + "/x", options)); });
  EXPECT_NE(std::string(error.what()).find("not all there after 1 s"), std::string::npos) << error.what();
}

TEST(Http, AServerThatIsNotThereIsAnError) {
  const auto stream = open_stream("http://127.0.0.1:9/x.tar", quick_retries);
  EXPECT_EQ(error_of([&] { read_all(*stream); }).exit(), Exit::io);
}

TEST(Stream, AnUnknownSchemeIsAnError) {
  EXPECT_EQ(error_of([] { open_stream("gs://bucket/x.tar"); }).exit(), Exit::io);
}

}  // namespace
}  // namespace millrace::test
