#pragma once
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace millrace::test {

// One side of a connection to a TestServer.
class Client {
 public:
  explicit Client(int fd, const std::atomic<bool>& stopping) : fd_(fd), stopping_(stopping) {}

  // False when the other side is gone.
  bool send(std::string_view bytes) {
    while (!bytes.empty() && open_) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) open_ = false;
      if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return open_;
  }
  void answer(int status, std::string_view body, const std::string& headers = "") {
    send("HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         headers + "\r\n");
    send(body);
  }
  // Waits, but not longer than the test; false when the other side is gone.
  bool pause(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (open_ && !stopping_ && std::chrono::steady_clock::now() < end) {
      pollfd peer{fd_, POLLIN, 0};
      if (::poll(&peer, 1, 10) > 0) open_ = false;  // nobody asks again before an answer
    }
    return open_ && !stopping_;
  }
  void close() { open_ = false; }
  void reset() {
    const linger now{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    open_ = false;
  }
  bool is_open() const { return open_; }

 private:
  int fd_;
  const std::atomic<bool>& stopping_;
  bool open_ = true;
};

// HTTP on a free port of a loopback address: `answer(path, client)` may do anything it likes to the client.
class TestServer {
 public:
  using Answer = std::function<void(const std::string& path, Client& client)>;

  explicit TestServer(Answer answer, const char* address = "127.0.0.1") : answer_(std::move(answer)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in place{};
    place.sin_family = AF_INET;
    ::inet_pton(AF_INET, address, &place.sin_addr);
    socklen_t length = sizeof place;
    if (::bind(listener_, reinterpret_cast<sockaddr*>(&place), length) != 0 || ::listen(listener_, 512) != 0)
      throw std::runtime_error("no port to listen on");
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&place), &length);
    port_ = ntohs(place.sin_port);
    base_ = std::string("http://") + address + ":" + std::to_string(port_);
    acceptor_ = std::jthread([this] { accept(); });
  }
  ~TestServer() {
    stopping_ = true;
    acceptor_.join();
    connections_.clear();
    ::close(listener_);
  }

  std::string url(const std::string& path) const { return base_ + path; }
  int port() const { return port_; }
  int connections() const { return accepted_; }
  // How often each path was asked for.
  std::map<std::string, int> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  std::string last_request() const {
    const std::lock_guard lock(mutex_);
    return last_request_;
  }
  int max_at_once() const { return max_at_once_; }

 private:
  void accept() {
    while (!stopping_) {
      pollfd ready{listener_, POLLIN, 0};
      if (::poll(&ready, 1, 20) <= 0) continue;
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      ++accepted_;
      connections_.emplace_back([this, fd] { serve(fd); });
    }
  }

  void serve(int fd) {
    Client client(fd, stopping_);
    std::string text;
    while (client.is_open() && !stopping_) {
      pollfd ready{fd, POLLIN, 0};
      if (::poll(&ready, 1, 20) <= 0) continue;
      char buffer[4096];
      const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
      if (got <= 0) break;
      text.append(buffer, static_cast<std::size_t>(got));
      const auto end = text.find("\r\n\r\n");
      if (end == text.npos) continue;
      const std::string request = text.substr(0, end);
      text.erase(0, end + 4);
      const auto path = request.substr(4, request.find(' ', 4) - 4);
      note(path, request);
      answer_(path, client);
      --at_once_;
    }
    ::close(fd);
  }

  void note(const std::string& path, const std::string& request) {
    const int now = ++at_once_;
    int most = max_at_once_;
    while (now > most && !max_at_once_.compare_exchange_weak(most, now)) {
    }
    const std::lock_guard lock(mutex_);
    ++requests_[path];
    last_request_ = request;
  }

  const Answer answer_;
  int listener_ = -1, port_ = 0;
  std::string base_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> accepted_{0}, at_once_{0}, max_at_once_{0};
  mutable std::mutex mutex_;
  std::map<std::string, int> requests_;
  std::string last_request_;
  std::vector<std::jthread> connections_;
  std::jthread acceptor_;
};

// So many hosts has this machine. For a server at 0.0.0.0.
inline std::string url_of_host(const TestServer& server, int number) {
  return fmt::format("http://127.0.{}.{}:{}/{}", number / 200, 1 + number % 200, server.port(), number);
}

}  // namespace millrace::test
