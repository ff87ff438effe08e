#include "http_get.h"

#include <gtest/gtest.h>

#include "millrace/io/net/http.h"

namespace millrace {
namespace {

// Failures stand in the metadata by their kind, which has to tell what curl's code did.
TEST(HttpGet, AFailureIsRetriedWhereTheTransferMayPass) {
  for (int i = 1; i < CURL_LAST; ++i) {
    const auto code = static_cast<CURLcode>(i);
    if (code == CURLE_HTTP_RETURNED_ERROR || code == CURLE_WRITE_ERROR) continue;  // not asked for; our own verdict
    EXPECT_EQ(is_retryable(failure_of(code)), may_pass(code, 0)) << i << ": " << curl_easy_strerror(code);
  }
}

}  // namespace
}  // namespace millrace
