// Objects behind s3://, from a server that speaks as much of S3 as reading takes.
#include <array>
#include <cstdlib>
#include <map>

#include "http_server.h"
#include "millrace/io/net/stream.h"
#include "millrace/io/net/urls.h"
#include "millrace/io/parquet.h"
#include "millrace/io/tar.h"

namespace millrace::test {
namespace {

std::string list_answer(const std::map<std::string, std::string>& objects) {
  std::string xml = "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated>";
  for (const auto& [key, body] : objects) {
    xml += fmt::format(
        "<Contents><Key>{}</Key><Size>{}</Size><LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>",
        key.substr(key.find('/', 1) + 1), body.size());
  }
  return xml + "</ListBucketResult>";
}

class S3 : public testing::Test {
 protected:
  static void TearDownTestSuite() { close_s3(); }

  void SetUp() override {
    for (const auto& [name, value] : std::map<std::string, std::string>{{"AWS_ENDPOINT_URL", server_.url()},
                                                                        {"AWS_REGION", "us-east-1"},
                                                                        {"AWS_ACCESS_KEY_ID", "test"},
                                                                        {"AWS_SECRET_ACCESS_KEY", "test"},
                                                                        {"AWS_EC2_METADATA_DISABLED", "true"}})
      ::setenv(name.c_str(), value.c_str(), 1);
  }

  std::string answer(const HttpRequest& request) const {
    const std::string path = request.path().substr(0, request.path().find('?'));
    if (request.path().find("list-type") != std::string::npos) {
      const std::string xml = list_answer(objects_);
      return http_answer("200 OK", "Content-Type: application/xml\r\n", xml.size(), xml);
    }
    const auto found = objects_.find(path);
    if (found == objects_.end()) return http_answer("404 Not Found", "", 0, "");
    return range_answer(request, found->second, SIZE_MAX, "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n");
  }

  const std::map<std::string, std::string> objects_ = {{"/b/set/00000.tar", read_file(golden("tar/plain.tar"))},
                                                       {"/b/set/00000.parquet", "sidecar"},
                                                       {"/b/set/readme.md", "text"},
                                                       {"/b/rows.parquet", read_file(golden("parquet/rows.parquet"))}};
  HttpServer server_{[this](const HttpRequest& request) { return answer(request); }};
};

TEST_F(S3, TarsParquetFilesAndFolders) {
  TarReader reader("s3://b/set/00000.tar");
  EXPECT_EQ(reader.skip(100), 5u);
  EXPECT_FALSE(reader.error());

  ParquetReader rows("s3://b/rows.parquet", {"width"});
  EXPECT_EQ(rows.rows(), 150u);
  EXPECT_EQ(rows.skip(100), 100u);
  EXPECT_EQ(std::get<std::int64_t>(rows.next()->at(0)), 100);

  EXPECT_EQ(expand_urls({"s3://b/set/"}, Archives::tar), std::vector<std::string>{"s3://b/set/00000.tar"});

  std::array<std::byte, 10> buffer;
  const Error error = error_of([&] { open_stream("s3://b/nothing.tar")->read(buffer); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("s3://b/nothing.tar"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace millrace::test
