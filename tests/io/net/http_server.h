#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "io/support.h"

namespace millrace::test {

struct HttpRequest {
  int number = 0;  // of the connection, from 0
  std::string head;
  std::string path() const {
    return head.substr(head.find(' ') + 1, head.find(' ', head.find(' ') + 1) - head.find(' ') - 1);
  }
  bool is(const std::string& method) const { return head.starts_with(method + " "); }
  // First and last byte of `Range:`, the whole of `size` without one.
  std::pair<std::size_t, std::size_t> range(std::size_t size) const {
    auto at = head.find("ange: bytes=");
    if (at == std::string::npos) return {0, size - 1};
    at += 12;
    const auto dash = head.find('-', at);
    const std::string last = head.substr(dash + 1, head.find('\r', dash) - dash - 1);
    return {std::stoul(head.substr(at)), last.empty() ? size - 1 : std::min(size - 1, std::stoul(last))};
  }
  bool has_range() const { return head.find("ange: bytes=") != std::string::npos; }
};

// Answers each connection once with whatever `answer` returns, head and body, and hangs up.
class HttpServer {
 public:
  using Answer = std::function<std::string(const HttpRequest&)>;

  explicit HttpServer(Answer answer) : answer_(std::move(answer)) {
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(socket_, reinterpret_cast<sockaddr*>(&address), size);
    ::listen(socket_, 16);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    url_ = fmt::format("http://127.0.0.1:{}", ntohs(address.sin_port));
    thread_ = std::jthread([this] {
      for (int number = 0;; ++number) {
        const int connection = ::accept(socket_, nullptr, nullptr);
        if (connection < 0) return;
        serve(connection, number);
      }
    });
  }
  ~HttpServer() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }

  const std::string& url() const { return url_; }
  int connections() const {
    const std::lock_guard lock(mutex_);
    return connections_;
  }

 private:
  void serve(int connection, int number) {
    HttpRequest request{number, {}};
    char buffer[4096];
    while (request.head.find("\r\n\r\n") == std::string::npos) {
      const ssize_t got = ::recv(connection, buffer, sizeof buffer, 0);
      if (got <= 0) break;
      request.head.append(buffer, static_cast<std::size_t>(got));
    }
    {
      const std::lock_guard lock(mutex_);
      ++connections_;
    }
    const std::string answer = answer_(request);
    ::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
    ::shutdown(connection, SHUT_WR);
    ::close(connection);
  }

  const Answer answer_;
  mutable std::mutex mutex_;
  int connections_ = 0;
  std::string url_;
  int socket_;
  std::jthread thread_;
};

inline std::string http_answer(const std::string& status, const std::string& headers, std::size_t length,
                               const std::string& body) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n", status, length, headers) +
         body;
}

// What a server that knows Range answers, of which `most` bytes arrive before it hangs up.
inline std::string range_answer(const HttpRequest& request, const std::string& body, std::size_t most = SIZE_MAX,
                                const std::string& headers = "") {
  const auto [first, last] = request.range(body.size());
  const std::string rest = body.substr(first, last - first + 1);
  const std::string range =
      request.has_range() ? fmt::format("Content-Range: bytes {}-{}/{}\r\n", first, last, body.size()) : "";
  return http_answer(request.has_range() ? "206 Partial Content" : "200 OK", range + headers, rest.size(),
                     request.is("HEAD") ? "" : rest.substr(0, most));
}

}  // namespace millrace::test
