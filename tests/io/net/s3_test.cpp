// Objects behind s3://, from a server that speaks as much of S3 as reading takes.
#include <array>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>

#include "http_server.h"
#include "millrace/core/storage_error.h"
#include "millrace/io/net/stream.h"
#include "millrace/io/net/urls.h"
#include "millrace/io/parquet.h"
#include "millrace/io/tar.h"
#include "net/s3.h"
#include "own_log.h"

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

std::map<std::string, std::string> ends = {{"a7", "text\xa7"}, {"58", "text\x58"}, {"one", "\xa7"}, {"empty", ""}};

// One for all tests: S3 begins and ends once in a process.
class Store {
 public:
  Store() {
    for (const auto& [name, value] : std::map<std::string, std::string>{{"AWS_ENDPOINT_URL", "http://127.0.0.1:1"},
                                                                        {"AWS_ENDPOINT_URL_S3", server_.url()},
                                                                        {"AWS_REGION", "us-east-1"},
                                                                        {"AWS_ACCESS_KEY_ID", "test"},
                                                                        {"AWS_SECRET_ACCESS_KEY", "test"},
                                                                        {"AWS_EC2_METADATA_DISABLED", "true"}})
      ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Store() { close_s3(); }

  void set_lacking(std::size_t bytes) { lacking_ = bytes; }
  void replace_objects() { ++version_; }

 private:
  std::string answer(const HttpRequest& request) const {
    const std::string path = request.path().substr(0, request.path().find('?'));
    if (request.path().find("list-type") != std::string::npos) {
      const std::string xml = list_answer(objects_);
      return http_answer("200 OK", "Content-Type: application/xml\r\n", xml.size(), xml);
    }
    const auto found = objects_.find(path);
    if (found == objects_.end()) return http_answer("404 Not Found", "", 0, "");
    const std::string& body = found->second;
    const std::string headers =
        fmt::format("Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\nETag: \"{}\"\r\n", version_.load());
    if (!request.is("GET") || lacking_ == 0) return range_answer(request, body, SIZE_MAX, headers);
    // As a gateway answers that has cut the body, and says no word of it.
    const auto [first, last] = request.range(body.size());
    const std::size_t asked = last + 1 - first, bytes = asked - std::min<std::size_t>(lacking_, asked);
    return http_answer("206 Partial Content",
                       fmt::format("Content-Range: bytes {}-{}/{}\r\n{}", first, last, body.size(), headers), bytes,
                       body.substr(first, bytes));
  }

  const std::map<std::string, std::string> objects_ = {{"/b/set/00000.tar", read_file(golden("tar/plain.tar"))},
                                                       {"/b/set/00000.parquet", "sidecar"},
                                                       {"/b/set/readme.md", "text"},
                                                       {"/b/large", std::string((8 << 20) + 1000, 'x')},
                                                       {"/b/a7", ends.at("a7")},
                                                       {"/b/58", ends.at("58")},
                                                       {"/b/one", ends.at("one")},
                                                       {"/b/empty", ends.at("empty")},
                                                       {"/b/rows.parquet", read_file(golden("parquet/rows.parquet"))}};
  std::atomic<std::size_t> lacking_ = 0;  // bytes at the end of each answer
  std::atomic<int> version_ = 1;
  HttpServer server_{[this](const HttpRequest& request) { return answer(request); }};
};

class S3 : public testing::Test {
 protected:
  static void SetUpTestSuite() { store = std::make_unique<Store>(); }
  static void TearDownTestSuite() { store.reset(); }

  inline static std::unique_ptr<Store> store;
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

// Arrow passes such an answer off as whole, with what stood in the memory behind it.
TEST_F(S3, AnAnswerThatIsTooShortIsAFaultOfTheStore) {
  std::vector<std::byte> buffer(1000);
  for (const std::size_t lacking : {1, 17, 1 << 20}) {
    store->set_lacking(lacking);
    for (const auto& read :
         std::vector<std::function<void()>>{[&] { open_stream("s3://b/set/00000.tar")->read(buffer); },
                                            [] { ParquetReader("s3://b/rows.parquet", {"width"}).next(); }})
      try {
        read();
        ADD_FAILURE() << lacking << " bytes were made up";
      } catch (const StorageError& error) {
        EXPECT_NE(std::string(error.what()).find("less than was asked for"), std::string::npos) << error.what();
      }
  }
  store->set_lacking(0);
}

std::string read_object(
    const std::string& url, const std::function<void()>& behind_first = [] {}) {
  std::vector<std::byte> buffer(1 << 20);
  const auto stream = open_stream(url);
  std::string text;
  while (const auto read = stream->read(buffer)) {
    text.append(reinterpret_cast<const char*>(buffer.data()), read);
    if (text.size() == read) behind_first();
  }
  stream->finish();
  return text;
}

// Those that end with what the last byte is preset to before a request.
TEST_F(S3, ObjectsMayEndWithAnyByte) {
  for (const char* name : {"a7", "58", "one", "empty"})
    EXPECT_EQ(read_object(fmt::format("s3://b/{}", name)), ends[name]);
}

TEST_F(S3, AnObjectThatIsReplacedWhileItIsReadIsToldOf) {
  const OwnLog log;
  EXPECT_EQ(read_object("s3://b/large").size(), (8u << 20) + 1000);
  EXPECT_EQ(log.count("was replaced"), 0) << log.text();
  read_object("s3://b/large", [] { store->replace_objects(); });
  EXPECT_EQ(log.count("s3://b/large was replaced while it was read"), 1) << log.text();
}

// What a client of a bucket finds when it is made.
TEST_F(S3, IsReadThroughAProxyUnlessNoProxyHasTheStore) {
  HttpServer proxy([](const HttpRequest& request) {
    return range_answer(request, "by proxy", SIZE_MAX, "Last-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n");
  });
  ::setenv("http_proxy", proxy.url().c_str(), 1);
  ::setenv("no_proxy", "example.org", 1);
  EXPECT_EQ(read_object("s3://far/x"), "by proxy");
  ::setenv("no_proxy", "127.0.0.1", 1);
  std::array<std::byte, 10> buffer;
  EXPECT_THROW(open_stream("s3://near/x")->read(buffer), AccessError) << "the store has none of that name";
  ::setenv("no_proxy", "", 1);
  ::setenv("http_proxy", "socks5://127.0.0.1:1", 1);
  {
    const OwnLog log;
    EXPECT_THROW(open_stream("s3://other/x")->read(buffer), AccessError) << "asked directly";
    EXPECT_EQ(log.count("takes no proxy of the environment"), 1) << log.text();
  }
  ::unsetenv("http_proxy");
  ::unsetenv("no_proxy");
}

// Arrow's words for what a store answers.
TEST(S3Answer, IsFinalWhereTheObjectIsNotGivenAndNotWhereTheStoreIsBusy) {
  const auto is_final = [](int status) {
    return is_final_answer(
        fmt::format("When reading information for key 'a.jpg' in bucket 'b': AWS Error UNKNOWN (HTTP status {}) during "
                    "HeadObject operation: No response body.",
                    status));
  };
  for (const int status : {405, 409, 410, 451}) EXPECT_TRUE(is_final(status)) << status;
  for (const int status : {400, 407, 408, 429, 500, 501, 503}) EXPECT_FALSE(is_final(status)) << status;
  EXPECT_TRUE(is_final_answer("AWS Error ACCESS_DENIED during HeadObject operation: No response body."));
  EXPECT_FALSE(is_final_answer("AWS Error SLOW_DOWN during GetObject operation: "));
  EXPECT_TRUE(
      is_final_answer("AWS Error [code 131] during GetObject operation: The operation is not valid for the "
                      "object's storage class"));
  EXPECT_FALSE(is_final_answer("AWS Error [code 100] during GetObject operation: of the library"));
}

}  // namespace
}  // namespace millrace::test
