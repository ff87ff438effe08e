#include "millrace/io/stream.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <thread>

#include "millrace/io/tar.h"
#include "support.h"

namespace millrace::test {
namespace {

std::string read_all(ByteStream& stream) {
  std::string all;
  std::array<std::byte, 1000> buffer;
  while (const std::size_t got = stream.read(buffer)) all += as_text({buffer.data(), got});
  return all;
}

// Serves `body` on a port of its own and hangs up after `piece` bytes of it, once for each of `connections`.
class FlakyServer {
 public:
  FlakyServer(std::string body, std::size_t piece, int connections) : body_(std::move(body)), piece_(piece) {
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(socket_, reinterpret_cast<sockaddr*>(&address), size);
    ::listen(socket_, 5);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    url_ = fmt::format("http://127.0.0.1:{}/x.tar", ntohs(address.sin_port));
    thread_ = std::jthread([this, connections] {
      for (int i = 0; i < connections; ++i) serve();
    });
  }
  ~FlakyServer() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }
  const std::string& url() const { return url_; }

 private:
  void serve() {
    const int connection = ::accept(socket_, nullptr, nullptr);
    if (connection < 0) return;
    std::string request(4000, '\0');
    request.resize(
        static_cast<std::size_t>(std::max<ssize_t>(::recv(connection, request.data(), request.size(), 0), 0)));
    const auto range = request.find("Range: bytes=");
    const std::size_t start = range == std::string::npos ? 0 : std::stoul(request.substr(range + 13));
    std::string answer = fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\nConnection: close\r\n", start ? 206 : 200,
                                     body_.size() - start);
    if (start) answer += fmt::format("Content-Range: bytes {}-{}/{}\r\n", start, body_.size() - 1, body_.size());
    answer += "\r\n" + body_.substr(start, piece_);
    ::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
    ::shutdown(connection, SHUT_WR);
    ::close(connection);
  }

  std::string body_, url_;
  std::size_t piece_;
  int socket_;
  std::jthread thread_;
};

TEST(Stream, ABrokenTransferGoesOnWhereItStopped) {
  const std::string body = read_file(golden("tar/plain.tar"));
  FlakyServer server(body, body.size() / 3 + 1, 3);
  EXPECT_EQ(read_all(*open_stream(server.url())), body);
}

TEST(Stream, ATransferThatBreaksTooOftenIsAnError) {
  FlakyServer server(std::string(10000, 'x'), 100, 4);
  const auto stream = open_stream(server.url());
  const Error error = error_of([&] { read_all(*stream); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("after 400 bytes"), std::string::npos) << error.what();
}

TEST(Stream, ReadsACommandsOutput) {
  EXPECT_EQ(read_all(*open_stream("pipe:printf abc; printf def")), "abcdef");
}

TEST(Stream, AFailingCommandIsAnErrorThatNamesIt) {
  const auto stream = open_stream("pipe:printf abc; exit 3");
  const Error error = error_of([&] { read_all(*stream); });
  EXPECT_EQ(error.exit(), Exit::io);
  EXPECT_NE(std::string(error.what()).find("status 3"), std::string::npos) << error.what();
}

TEST(Stream, ACommandThatOutlivesItsReaderIsStopped) {
  const auto stream = open_stream("pipe:yes");
  std::array<std::byte, 10> buffer;
  EXPECT_EQ(stream->read(buffer), 10u);
}

TEST(Stream, AnUnknownSchemeIsAnError) {
  EXPECT_EQ(error_of([] { open_stream("s3://bucket/x.tar"); }).exit(), Exit::io);
}

TEST(Stream, AServerThatIsNotThereIsAnError) {
  const auto stream = open_stream("http://127.0.0.1:9/x.tar");
  EXPECT_EQ(error_of([&] { read_all(*stream); }).exit(), Exit::io);
}

TEST(Stream, ATarMayComeThroughAPipe) {
  TarReader reader("pipe:cat " + golden("tar/plain.tar.gz").string());
  EXPECT_EQ(reader.skip(100), 5u);
  EXPECT_FALSE(reader.error());
}

TEST(Stream, AFailingPipeBreaksTheArchive) {
  TarReader reader("pipe:head -c 5000 " + golden("tar/plain.tar").string() + "; exit 1");
  EXPECT_EQ(reader.skip(100), 1u);
  ASSERT_TRUE(reader.error());
}

}  // namespace
}  // namespace millrace::test
