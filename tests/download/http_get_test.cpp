#include "http_get.h"

#include <gtest/gtest.h>

#include "millrace/core/error.h"
#include "millrace/download/progress.h"
#include "millrace/io/net/http.h"

namespace millrace {
namespace {

// Failures stand in the metadata by their kind, which has to tell what curl's code did.
TEST(HttpGet, AFailureIsRetriedWhereTheTransferMayPass) {
  for (int i = 1; i < CURL_LAST; ++i) {
    const auto code = static_cast<CURLcode>(i);
    if (code == CURLE_HTTP_RETURNED_ERROR || code == CURLE_WRITE_ERROR) continue;  // not asked for; our own verdict
    if (code == CURLE_SSL_CACERT_BADFILE) continue;                                // not the server's
    EXPECT_EQ(is_retryable(failure_of(code)), is_transient(code, 0)) << i << ": " << curl_easy_strerror(code);
  }
}

TEST(HttpGet, AMachineWithoutCertificatesEndsTheRun) {
  try {
    failure_of(CURLE_SSL_CACERT_BADFILE);
    FAIL() << "counted as the image's";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_NE(error.hint().find("ca-certificates"), std::string::npos) << error.hint();
  }
}

TEST(HttpGet, ACertificateThatDoesNotVerifyIsNotAskedForAgain) {
  const Failure expired = failure_of(CURLE_PEER_FAILED_VERIFICATION);
  EXPECT_EQ(expired.kind, FailureKind::tls);
  EXPECT_FALSE(is_retryable(expired));
  DownloadProgress progress;
  progress.add(expired);
  EXPECT_EQ(progress.counts().retryable, 0);
  progress.add({FailureKind::timeout, ""});
  EXPECT_EQ(progress.counts().retryable, 1);
}

}  // namespace
}  // namespace millrace
