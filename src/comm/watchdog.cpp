#include "millrace/comm/watchdog.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "millrace/core/log.h"
#include "millrace/core/phase.h"
#include "millrace/core/stopwatch.h"

namespace millrace {
namespace {

constexpr double min_limit_seconds = 10;
constexpr double beat_seconds = 1;

// One datagram, either way; all ranks run the same program on the same kind of machine.
struct Beat {
  std::uint64_t run = 0;  // of another run that once had the port: thrown away
  std::int32_t rank = 0;
  std::int32_t leaves = 0;
  std::int64_t step = 0;
  double unchanged_seconds = 0;
  char phase[24] = {}, awaited[32] = {};
};

struct Address {
  sockaddr_storage storage = {};
  socklen_t length = 0;
};

std::optional<Address> find_address(const std::string& host, const std::string& port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return std::nullopt;
  Address address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

std::string describe(const Beat& beat) {
  const std::string step = beat.step ? fmt::format(" step {}", beat.step) : "";
  return beat.awaited[0] ? fmt::format("waiting in {}, {}{}", beat.awaited, beat.phase, step)
                         : fmt::format("{}{}", beat.phase, step);
}

}  // namespace

struct Watchdog::Impl {
  // What rank 0 knows of a rank.
  struct Known {
    Beat last;
    Stopwatch since;
    std::optional<Address> address;  // nothing has come from it yet
  };

  int rank;
  double limit;
  std::vector<std::string> hosts;
  std::function<void(const Suspect&)> on_hang;
  int socket = -1;
  std::optional<Address> root;
  std::uint64_t run = 0;
  std::vector<Known> ranks;  // on rank 0; on the others only the first, which is rank 0
  Beat own;
  Stopwatch unchanged;
  std::uint64_t seen_moves = 0;
  std::jthread thread;

  ~Impl() {
    if (thread.joinable()) {
      thread.request_stop();
      thread.join();
    }
    if (socket >= 0) ::close(socket);
  }

  void work(const std::stop_token& stop) {
    for (Stopwatch since_beat; !stop.stop_requested(); receive()) {
      if (own.run == run && since_beat.seconds() < beat_seconds) continue;
      since_beat = Stopwatch();
      look_at_this_process();
      if (root) send(own, *root);
      if (const auto suspect = find_suspect()) {
        tell_that_this_rank_leaves();
        on_hang(*suspect);
        return;
      }
    }
    tell_that_this_rank_leaves();
  }

  void tell_that_this_rank_leaves() {
    own.leaves = 1;
    for (int i = 0; i < 3; ++i) {  // one may get lost
      if (root) send(own, *root);
      for (const auto& known : ranks)
        if (known.address) send(own, *known.address);
    }
  }

  void look_at_this_process() {
    const auto copy = [](auto& to, const char* from) {
      std::fill(std::begin(to), std::end(to), '\0');
      if (from) std::strncpy(to, from, sizeof to - 1);
    };
    Beat now{.run = run, .rank = rank, .step = phase::step};
    copy(now.phase, phase::current);
    copy(now.awaited, phase::awaited);
    const auto moves = phase::moves.load();
    if (now.step != own.step || std::strcmp(now.phase, own.phase) != 0 || std::strcmp(now.awaited, own.awaited) != 0 ||
        moves != seen_moves)
      unchanged = Stopwatch();
    seen_moves = moves;
    own = now;
    own.unchanged_seconds = unchanged.seconds();
  }

  void send(const Beat& beat, const Address& to) const {
    ::sendto(socket, &beat, sizeof beat, 0, reinterpret_cast<const sockaddr*>(&to.storage), to.length);
  }

  // Waits a quarter of a second at most.
  void receive() {
    Beat beat;
    Address from;
    from.length = sizeof from.storage;
    if (::recvfrom(socket, &beat, sizeof beat, 0, reinterpret_cast<sockaddr*>(&from.storage), &from.length) !=
            sizeof beat ||
        beat.run != run || beat.rank < 0 || beat.rank >= static_cast<int>(ranks.size()))
      return;
    ranks[beat.rank] = {beat, Stopwatch(), from};
    if (rank == 0) send(own, from);
  }

  std::optional<Suspect> find_suspect() const {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const Known& known = ranks[i];
      if (!known.address || known.last.leaves) continue;
      const double silent = known.since.seconds(), still = known.last.unchanged_seconds + silent;
      // Trainers notice a silent producer by themselves, and save first.
      if (std::strcmp(known.last.phase, phase::producing) == 0) continue;
      const bool stands = std::strcmp(known.last.phase, phase::training) == 0 && !known.last.awaited[0];
      if (silent < limit && !(stands && still > limit)) continue;
      return Suspect{static_cast<int>(i), hosts[i], known.last.phase,
                     silent >= limit ? fmt::format("rank {} on {} has not been heard of for {:.0f} s; it was {}", i,
                                                   hosts[i], silent, describe(known.last))
                                     : fmt::format("rank {} on {} has not moved for {:.0f} s, in {}", i, hosts[i],
                                                   still, describe(known.last))};
    }
    return std::nullopt;
  }
};

Watchdog::Watchdog(const World& world, double limit_seconds, std::function<void(const Suspect&)> on_hang)
    : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.rank = world.rank();
  impl.limit = std::max(limit_seconds, min_limit_seconds);
  impl.hosts = world.hosts();
  impl.on_hang = std::move(on_hang);
  impl.ranks.resize(impl.rank == 0 ? static_cast<std::size_t>(world.size()) : 1);
  impl.socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const timeval quarter{.tv_sec = 0, .tv_usec = 250000};
  ::setsockopt(impl.socket, SOL_SOCKET, SO_RCVTIMEO, &quarter, sizeof quarter);
  std::string where;  // of rank 0's socket: "PORT RUN"
  if (impl.rank == 0) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    socklen_t length = sizeof any;
    std::random_device random;
    if (::bind(impl.socket, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0 &&
        ::getsockname(impl.socket, reinterpret_cast<sockaddr*>(&any), &length) == 0)
      where = fmt::format("{} {}", ntohs(any.sin_port), (std::uint64_t{random()} << 32) | random());
  }
  where = world.group().broadcast(where);
  const auto space = where.find(' ');
  if (space == where.npos) {
    if (impl.rank == 0) log::warning("no watchdog: {}", std::strerror(errno));
    return;
  }
  impl.run = std::stoull(where.substr(space + 1));
  if (impl.rank != 0) impl.root = find_address(impl.hosts.front(), where.substr(0, space));
  impl.thread = std::jthread([&impl](const std::stop_token& stop) { impl.work(stop); });
}

Watchdog::~Watchdog() = default;

}  // namespace millrace
