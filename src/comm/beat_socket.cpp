#include "beat_socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

namespace millrace {
namespace {

constexpr int receive_bytes = 4 << 20;  // datagrams of thousands of ranks, as far as the system allows
constexpr int max_at_once = 10000;      // datagrams, before the watchdog looks at its own process again

}  // namespace

std::optional<BeatAddress> find_beat_address(const std::string& host, const std::string& port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return std::nullopt;
  BeatAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

BeatSocket::BeatSocket() : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  if (fd_ < 0) {
    problem_ = std::strerror(errno);
    return;
  }
  const timeval quarter{.tv_sec = 0, .tv_usec = 250000};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &quarter, sizeof quarter);
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
}

BeatSocket::~BeatSocket() {
  if (is_open()) ::close(fd_);
}

std::optional<int> BeatSocket::bind() {
  if (!is_open()) return std::nullopt;
  sockaddr_in any{};
  any.sin_family = AF_INET;
  socklen_t length = sizeof any;
  if (::bind(fd_, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0 &&
      ::getsockname(fd_, reinterpret_cast<sockaddr*>(&any), &length) == 0)
    return ntohs(any.sin_port);
  problem_ = std::strerror(errno);
  return std::nullopt;
}

void BeatSocket::send(const Beat& beat, const BeatAddress& to) const {
  ::sendto(fd_, &beat, sizeof beat, 0, reinterpret_cast<const sockaddr*>(&to.storage), to.length);
}

void BeatSocket::receive(const std::function<void(const Beat&, const BeatAddress& from)>& hear) const {
  Beat beat;
  for (int number = 0; number < max_at_once; ++number) {
    BeatAddress from;
    from.length = sizeof from.storage;
    const auto bytes = ::recvfrom(fd_, &beat, sizeof beat, number == 0 ? 0 : MSG_DONTWAIT,
                                  reinterpret_cast<sockaddr*>(&from.storage), &from.length);
    if (bytes < 0) {
      if (errno != EAGAIN && errno != EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(250));
      return;
    }
    if (bytes == sizeof beat) hear(beat, from);
  }
}

}  // namespace millrace
