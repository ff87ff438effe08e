#include "millrace/io/net/http.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(HttpRetries, TheServerMayRecover) {
  for (const long status : {408, 429, 500, 502, 503, 504, 599}) EXPECT_TRUE(is_transient(status)) << status;
  for (const long status : {0, 200, 206, 301, 400, 401, 403, 404, 410, 416, 451, 600})
    EXPECT_FALSE(is_transient(status)) << status;
}

TEST(HttpRetries, AnAddressACertificateOrTheReaderDoNot) {
  struct {
    CURLcode result;
    bool passes;
  } const cases[] = {
      {CURLE_COULDNT_RESOLVE_HOST, true}, {CURLE_COULDNT_CONNECT, true},     {CURLE_OPERATION_TIMEDOUT, true},
      {CURLE_PARTIAL_FILE, true},         {CURLE_GOT_NOTHING, true},         {CURLE_SEND_ERROR, true},
      {CURLE_RECV_ERROR, true},           {CURLE_SSL_CONNECT_ERROR, true},   {CURLE_HTTP2_STREAM, true},
      {CURLE_UNSUPPORTED_PROTOCOL, true},  // an answer that is no HTTP
      {CURLE_URL_MALFORMAT, false},       {CURLE_TOO_MANY_REDIRECTS, false}, {CURLE_PEER_FAILED_VERIFICATION, false},
      {CURLE_SSL_ISSUER_ERROR, false},    {CURLE_SSL_CACERT_BADFILE, false}, {CURLE_FILESIZE_EXCEEDED, false},
      {CURLE_WRITE_ERROR, false},
  };
  for (const auto& [result, passes] : cases) EXPECT_EQ(is_transient(result, 200), passes) << curl_easy_strerror(result);
  EXPECT_TRUE(is_transient(CURLE_HTTP_RETURNED_ERROR, 503));
  EXPECT_FALSE(is_transient(CURLE_HTTP_RETURNED_ERROR, 404));
}

TEST(AnswerHeaders, AreThoseOfTheLastAnswer) {
  AnswerHeaders headers;
  const auto take = [&](std::initializer_list<const char*> lines) {
    for (const char* line : lines) headers.take(line);
  };
  take({"HTTP/1.1 302 Found\r\n", "Location: /b\r\n", "ETag: \"of a\"\r\n", "\r\n"});
  EXPECT_EQ(headers.find("location"), "/b");
  take({"HTTP/1.1 100 Continue\r\n", "\r\n", "HTTP/2 206 \r\n", "content-RANGE:bytes 5-9/10 \r\n", "no header\r\n",
        "X-Empty:\r\n", "X-Time: 12:30\r\n", "x-time: 12:45\r\n", "\r\n"});
  EXPECT_EQ(headers.find("location"), std::nullopt);
  EXPECT_EQ(headers.find("etag"), std::nullopt);
  EXPECT_EQ(headers.find("content-range"), "bytes 5-9/10");
  EXPECT_EQ(headers.find("x-empty"), "");
  EXPECT_EQ(headers.find("x-time"), "12:30") << "the first of two";
  take({"HTTP/1.1 200 OK\r\n", "ETag:\r\n", "\t\"a\r\n", " b\"\r\n", "ETag: x\r\n", " y\r\n"});
  EXPECT_EQ(headers.find("etag"), "\"a b\"") << "folded";
  headers.take("X-Long: " + std::string(64 << 10, 'x') + "\r\n");
  EXPECT_EQ(headers.find("x-long"), std::nullopt);
}

}  // namespace
}  // namespace millrace
