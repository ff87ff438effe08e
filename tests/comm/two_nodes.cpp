// Ranks of this program are on two nodes in turn, node-0 and node-1, though all are on one machine: what an executable
// defines comes before libc's. Each node is 127.0.0.1 to itself, and what goes there from the other one gets lost.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "millrace/comm/launch_rank.h"

namespace {

int own_node() {
  return std::stoi(millrace::launch_rank().value_or("0")) % 2;
}

std::string address_of_node(int node) {
  return "127.0.0." + std::to_string(2 + node);
}

template <class Function>
Function next_definition(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int gethostname(char* name, size_t bytes) noexcept {
  std::snprintf(name, bytes, "node-%d", own_node());
  return 0;
}

// For datagrams: MPI finds its ranks by itself.
int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** found) {
  static const auto real =
      next_definition<int (*)(const char*, const char*, const addrinfo*, addrinfo**)>("getaddrinfo");
  if (!name || !hints || hints->ai_socktype != SOCK_DGRAM) return real(name, service, hints, found);
  const std::string host = name;
  const int node = host.starts_with("node-") ? std::stoi(host.substr(5)) : own_node();
  return real(address_of_node(node).c_str(), service, hints, found);
}

int bind(int fd, const sockaddr* address, socklen_t bytes) noexcept {
  static const auto real = next_definition<int (*)(int, const sockaddr*, socklen_t)>("bind");
  int type = 0;
  socklen_t type_bytes = sizeof type;
  ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_bytes);
  if (type != SOCK_DGRAM || address->sa_family != AF_INET) return real(fd, address, bytes);
  sockaddr_in own{};
  std::memcpy(&own, address, sizeof own);
  own.sin_addr.s_addr = ::inet_addr(address_of_node(own_node()).c_str());
  return real(fd, reinterpret_cast<const sockaddr*>(&own), sizeof own);
}
}
