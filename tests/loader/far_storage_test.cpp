// Archives behind http:// and s3:// that are refused or away for a while, and for good.
#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <random>

#include "dataset/rows_of.h"
#include "dataset/temp_archives.h"
#include "error_of.h"
#include "io/net/http_server.h"
#include "millrace/dataset/image_uri.h"
#include "millrace/dataset/retrying_source.h"
#include "millrace/io/net/stream.h"
#include "millrace/io/parquet_writer.h"
#include "millrace/loader/sources.h"

namespace millrace::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using Seconds = StorageRetry::Seconds;

constexpr int rows = 40;

// A server of http:// and s3:// that refuses what it is told to. One for all tests: S3 begins and ends once in a
// process.
class RefusingServer {
 public:
  RefusingServer() {
    for (const auto& [name, value] : {std::pair("AWS_ENDPOINT_URL", server_.url().c_str()),
                                      {"AWS_REGION", "us-east-1"},
                                      {"AWS_ACCESS_KEY_ID", "test"},
                                      {"AWS_SECRET_ACCESS_KEY", "test"},
                                      {"AWS_SHARED_CREDENTIALS_FILE", "/dev/null"},
                                      {"AWS_CONFIG_FILE", "/dev/null"},
                                      {"AWS_EC2_METADATA_DISABLED", "true"}})
      ::setenv(name, value, 1);
  }
  ~RefusingServer() { close_s3(); }

  void serve(std::map<std::string, std::string> files) { files_ = std::move(files); }
  // Requests [first, first + count) get `status`, those before them only the first `cut` bytes.
  void refuse(const std::string& status, int first = 0, int count = 1 << 20, std::size_t cut = SIZE_MAX) {
    status_ = status;
    first_ = first;
    count_ = count;
    cut_ = cut;
    asked_ = 0;
  }
  void allow() { refuse("", 0, 0); }
  // Requests without a key get 403.
  void want_key(bool wanted) { wants_key_ = wanted; }
  int asked() const { return asked_; }
  const std::string& url() const { return server_.url(); }

 private:
  std::string answer(const HttpRequest& request) {
    const int number = asked_++;
    const bool has_key = request.head.find("uthorization: ") != std::string::npos;
    if (wants_key_ && !has_key) return http_answer("403 Forbidden", "", 0, "");
    if (number >= first_ && number < first_ + count_) return http_answer(status_, "", 0, "");
    return range_answer(request, files_.at(request.path()), number < first_ ? cut_ : SIZE_MAX,
                        "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n");
  }

  std::map<std::string, std::string> files_;
  std::string status_;
  std::size_t cut_ = SIZE_MAX;
  int first_ = 0, count_ = 0;
  std::atomic<bool> wants_key_ = false;
  std::atomic<int> asked_ = 0;
  HttpServer server_{[this](const HttpRequest& request) { return answer(request); }};
};

class FarStorage : public testing::Test {
 protected:
  static void SetUpTestSuite() { server = std::make_unique<RefusingServer>(); }
  static void TearDownTestSuite() { server.reset(); }

  FarStorage() {
    std::mt19937 random(7);
    std::vector<TarSample> samples;
    std::string image(5000, '\0');
    for (int i = 0; i < rows; ++i) {
      for (char& c : image) c = static_cast<char>(random());
      samples.push_back(sample(fmt::format("{:03}", i), image, fmt::format("caption {}", i)));
    }
    folder_.write_tar("a.tar", samples);
    ParquetWriter writer(folder_.path("a.parquet"),
                         {{"jpg", ParquetField::Type::bytes}, {"caption", ParquetField::Type::text}}, 10);
    for (const TarSample& row : samples) writer.write({row.fields[0].second, row.fields[1].second});
    writer.commit();
    server->serve(
        {{"/b/a.tar", read_file(folder_.path("a.tar"))}, {"/b/a.parquet", read_file(folder_.path("a.parquet"))}});
    server->allow();
  }

  std::vector<std::string> read(const std::string& address, Seconds retry_for = Seconds(60)) {
    SourceConfig config;
    config.type = address.ends_with(".tar") ? SourceConfig::Type::webdataset : SourceConfig::Type::parquet;
    Manifest manifest;
    manifest.archives.push_back({.path = address, .name = "a", .rows = {}, .limit = {}});
    const auto source = make_source(config, manifest, 16);
    StorageRetry retry(retry_for);
    const RetryingSource patient(*source, retry);
    std::vector<std::string> shown;
    const auto reader = patient.open({0, 0, 1}, 0);
    while (const auto row = reader->next()) shown.push_back(show(*row));
    return shown;
  }

  inline static std::unique_ptr<RefusingServer> server;
  const TempFolder folder_;
  const std::vector<std::string> addresses_ = {server->url() + "/b/a.tar", "s3://b/a.tar", "s3://b/a.parquet"};
};

// A token that has run out and is renewed: no row is lost, none comes twice.
TEST_F(FarStorage, RowsAreThoseOfAStraightReadWhenAccessComesBack) {
  for (const std::string& address : addresses_) {
    const auto expected = read(address);
    ASSERT_EQ(expected.size(), static_cast<std::size_t>(rows)) << address;
    for (const char* status : {"403 Forbidden", "401 Unauthorized", "400 Bad Request"}) {
      server->refuse(status, 0, 3);
      EXPECT_EQ(read(address), expected) << address << ", " << status;
      EXPECT_GT(server->asked(), 3);
      server->allow();
    }
  }
}

TEST_F(FarStorage, RowsAreThoseOfAStraightReadWhenATransferMayNotGoOn) {
  const auto expected = read(addresses_[0]);
  server->refuse("403 Forbidden", 1, 3, 100'000);
  EXPECT_EQ(read(addresses_[0]), expected);
  EXPECT_GT(server->asked(), 4);
}

TEST_F(FarStorage, RefusalsForGoodEndTheRunAndAreNamed) {
  for (const std::string& address : addresses_)
    for (const char* status : {"403 Forbidden", "400 Bad Request"}) {
      server->refuse(status);
      const Error error = error_of([&] { read(address, Seconds(0.2)); });
      EXPECT_EQ(error.exit(), Exit::io);
      EXPECT_THAT(error.what(), HasSubstr(address + ": read failed for 0.2 s: "));
      EXPECT_THAT(error.what(),
                  testing::AnyOf(HasSubstr(std::string(status).substr(0, 3)), HasSubstr("ACCESS_DENIED")));
      EXPECT_THAT(error.hint(), HasSubstr("data.retry_for"));
    }
}

// As a local archive that is not there: waiting would not help.
TEST_F(FarStorage, AnArchiveThatIsNotThereEndsTheRunAtOnce) {
  for (const std::string& address : addresses_) {
    server->refuse("404 Not Found");
    const Error error = error_of([&] { read(address, Seconds(1000)); });
    EXPECT_EQ(error.exit(), Exit::io);
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr(address), Not(HasSubstr("read failed for"))));
    EXPECT_THAT(error.hint(), HasSubstr("take it out of the data's path"));
  }
}

RejectReason why_not(const std::string& image, std::uint64_t max_bytes = 1 << 20) {
  return std::get<LoadFailure>(load_image(image, max_bytes)).reason;
}

// Of the images that a list names, some are closed for good; a token that has run out says so otherwise. Of a busy
// store (408, 429), which Arrow asks for half a minute: dataset_test.
TEST_F(FarStorage, AnImageIsMissingWhereItIsRefused) {
  for (const char* status : {"403 Forbidden", "404 Not Found"}) {
    server->refuse(status);
    EXPECT_EQ(why_not(server->url() + "/b/a.jpg"), RejectReason::missing_image);
    EXPECT_EQ(why_not("s3://b/a.jpg"), RejectReason::missing_image);
  }
  for (const char* status : {"405 Method Not Allowed", "410 Gone"}) {
    server->refuse(status);
    EXPECT_EQ(why_not("s3://b/a.jpg"), RejectReason::missing_image) << status;
  }
  for (const char* status : {"400 Bad Request", "501 Not Implemented"}) {
    server->refuse(status);
    EXPECT_THROW(load_image("s3://b/a.jpg", 1 << 20), StorageError) << status;
  }
}

std::string image_of(const std::string& image) {
  return std::get<std::string>(load_image(image, 1 << 20));
}

// As those of a role that are renewed too late: then the AWS library asks without.
TEST_F(FarStorage, AnImageIsNotMissingWhereCredentialsHaveRunOut) {
  const std::string image = "s3://private/a.jpg";
  server->serve({{"/private/a.jpg", "J"}});
  server->want_key(true);
  EXPECT_EQ(image_of(image), "J");
  ::unsetenv("AWS_ACCESS_KEY_ID");
  ::setenv("AWS_PROFILE", "lab", 1);
  try {
    load_image(image, 1 << 20);
    ADD_FAILURE() << "its row is lost";
  } catch (const StorageError& error) {
    EXPECT_THAT(error.why(), HasSubstr("No credentials are found (AWS_PROFILE=lab), so it was asked without any."));
    EXPECT_THAT(error.hint(), HasSubstr("aws configure export-credentials"));
  }
  ::unsetenv("AWS_PROFILE");
  ::setenv("AWS_ACCESS_KEY_ID", "test", 1);
  EXPECT_EQ(image_of(image), "J");
  server->refuse("403 Forbidden");
  EXPECT_EQ(why_not(image), RejectReason::missing_image);
  server->want_key(false);
}

TEST_F(FarStorage, WhatIsOpenToAllNeedsNoCredentials) {
  server->serve({{"/public/a.jpg", "J"}});
  ::unsetenv("AWS_ACCESS_KEY_ID");
  server->refuse("403 Forbidden");
  EXPECT_EQ(why_not("s3://public/a.jpg"), RejectReason::missing_image) << "a list may begin with such rows";
  server->allow();
  EXPECT_EQ(image_of("s3://public/a.jpg"), "J");
  server->refuse("403 Forbidden");
  EXPECT_EQ(why_not("s3://public/a.jpg"), RejectReason::missing_image);
  ::setenv("AWS_ACCESS_KEY_ID", "test", 1);
}

// By a wrong secret every row would be lost; a list may begin with a few that are closed.
TEST_F(FarStorage, ImagesAreNotMissingWhereABucketGivesNone) {
  const std::string image = "s3://locked/a.jpg";
  server->serve({{"/locked/a.jpg", "J"}});
  server->refuse("403 Forbidden");
  int missing = 0;
  EXPECT_THROW(for (; missing < 100; ++missing) EXPECT_EQ(why_not(image), RejectReason::missing_image), StorageError);
  EXPECT_GE(missing, 10);
  server->allow();
  EXPECT_EQ(image_of(image), "J");
  server->refuse("403 Forbidden");
  EXPECT_EQ(why_not(image), RejectReason::missing_image);
}

// None of them is asked for; of a store that is away they would end the run.
TEST_F(FarStorage, AnImageIsMissingWhereItsAddressNamesNoObject) {
  server->refuse("501 Not Implemented");
  for (const char* address :
       {"s3://", "s3:///a.jpg", "s3://b", "s3://b/", "s3://b/set/", "s3://b//a.jpg", "s3://b/set//a.jpg",
        "s3://http:b/a.jpg", "s3://h@b/a.jpg", "s3://h#b/a.jpg", "s3://b b/a.jpg"})
    EXPECT_EQ(why_not(address), RejectReason::missing_image) << address;
  EXPECT_EQ(server->asked(), 0);
}

// A list names many hosts of the web: none of them may end the run, or hold it up.
TEST_F(FarStorage, AnImageIsMissingWhereAHostOfTheWebIsOutOfOrder) {
  server->refuse("400 Bad Request");
  EXPECT_EQ(why_not(server->url() + "/b/a.jpg"), RejectReason::missing_image);
  server->refuse("503 Service Unavailable\r\nRetry-After: 100");
  EXPECT_EQ(why_not(server->url() + "/b/a.jpg"), RejectReason::missing_image);
  EXPECT_EQ(server->asked(), 1) << "100 s are more than an image may take";
}

TEST_F(FarStorage, AnImageOfMoreBytesThanAllowedIsTooLarge) {
  const std::string file = folder_.path("a.tar"), bytes = read_file(file);
  for (const std::string& image : {server->url() + "/b/a.tar", std::string("s3://b/a.tar"), file}) {
    EXPECT_EQ(why_not(image, bytes.size() - 1), RejectReason::too_large) << image;
    EXPECT_EQ(std::get<std::string>(load_image(image, bytes.size())), bytes) << image;
  }
}

}  // namespace
}  // namespace millrace::test
