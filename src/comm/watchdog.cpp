#include "millrace/comm/watchdog.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "hang_judge.h"
#include "millrace/core/log.h"
#include "millrace/core/phase.h"
#include "millrace/core/stacks.h"
#include "millrace/core/stopwatch.h"

namespace millrace {
namespace {

constexpr double min_limit_seconds = 10;
constexpr double beat_seconds = 1;
constexpr double stacks_seconds = 3;  // for all ranks to write where they stand, before the run is ended
constexpr double look_seconds = 0.1;  // between two questions who has them
constexpr double alive_seconds = 3;   // who was heard of since then can write them
constexpr double pause_seconds = 5;   // this thread looks at least every quarter of a second

// One datagram, either way; all ranks run the same program on the same kind of machine.
struct Beat {
  std::uint64_t run = 0;  // of another run that once had the port: thrown away
  std::int32_t rank = 0;
  std::int32_t leaves = 0;
  std::int32_t wants_stacks = 0;  // all ranks are to write theirs
  std::int32_t has_stacks = 0;    // this rank has; said by rank 0: all have that can
  std::int64_t step = 0;
  double unchanged_seconds = 0, slow_step_seconds = 0;
  char phase[24] = {}, awaited[32] = {};
};

// Of this process: its threads and its watchdog talk of it.
std::atomic<bool> watched{false}, stacks_wanted{false}, stacks_everywhere{false};

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

std::string describe(const Sign& sign) {
  const std::string step = sign.step ? fmt::format(" step {}", sign.step) : "";
  return sign.awaited.empty() ? fmt::format("{}{}", sign.phase, step)
                              : fmt::format("waiting in {}, {}{}", sign.awaited, sign.phase, step);
}

Sign to_sign(const Beat& beat) {
  return {beat.phase, beat.awaited, beat.leaves != 0, beat.step, beat.unchanged_seconds, beat.slow_step_seconds};
}

}  // namespace

struct Watchdog::Impl {
  // Of another rank; rank 0 has these of all, the others of rank 0 alone.
  struct Peer {
    std::optional<Address> address;  // nothing has come from it yet
    double heard = 0;
    bool leaves = false, has_stacks = false;
  };

  int rank;
  std::vector<std::string> hosts;
  std::function<void(const Suspect&)> on_hang;
  int socket = -1;
  std::optional<Address> root;
  std::uint64_t run = 0;
  std::vector<Peer> peers;
  std::optional<HangJudge> judge;
  SlowStep slow_step;
  Beat own;
  Stopwatch clock, unchanged, since_stacks;
  std::uint64_t seen_moves = 0;
  std::jthread thread;

  ~Impl() {
    if (thread.joinable()) {
      thread.request_stop();
      thread.join();
      watched = false;
    }
    if (socket >= 0) ::close(socket);
  }

  void work(const std::stop_token& stop) {
    Stopwatch since_beat, since_turn;
    std::optional<Suspect> suspect;
    for (Stopwatch since_suspect; !stop.stop_requested(); receive()) {
      if (since_turn.lap() > pause_seconds) forget_the_pause();
      slow_step.look(phase::current.load(), phase::step, clock.seconds());
      if (own.run != run || since_beat.seconds() >= beat_seconds) {
        since_beat = Stopwatch();
        look_at_this_process();
        if (root) send(own, *root);
      }
      see_to_stacks();
      if (!suspect && (suspect = find_suspect())) {
        since_suspect = Stopwatch();
        stacks_wanted = true;
      } else if (suspect && (stacks_everywhere || since_suspect.seconds() > stacks_seconds)) {
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
      tell_peers();
    }
  }

  void tell_peers() const {
    for (const auto& peer : peers)
      if (peer.address) send(own, *peer.address);
  }

  // This process, or its machine, was asleep, and perhaps the whole run with it.
  void forget_the_pause() {
    unchanged = Stopwatch();
    slow_step.pass_over(clock.seconds());
    judge->restart(clock.seconds());
    for (auto& peer : peers) peer.heard = clock.seconds();
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
    own.slow_step_seconds = slow_step.seconds();
    judge->hear(rank, to_sign(own), clock.seconds());
    if (rank == 0) own.slow_step_seconds = judge->slow_step_seconds();
  }

  // Rank 0 hears who wants them, tells all, and hears who has them.
  void see_to_stacks() {
    if (!stacks_wanted) return;
    stacks::start_writing();
    if (since_stacks.seconds() < look_seconds) return;
    since_stacks = Stopwatch();
    own.wants_stacks = 1;
    own.has_stacks = stacks::written();
    if (rank != 0) {
      if (root) send(own, *root);
      return;
    }
    for (const auto& peer : peers)
      if (peer.address && !peer.leaves && clock.seconds() - peer.heard < alive_seconds && !peer.has_stacks)
        own.has_stacks = 0;
    if (own.has_stacks) stacks_everywhere = true;
    tell_peers();
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
        beat.run != run || beat.rank < 0 || beat.rank >= static_cast<int>(peers.size()))
      return;
    const double now = clock.seconds();
    peers[beat.rank] = {from, now, beat.leaves != 0, beat.has_stacks != 0};
    judge->hear(beat.rank, to_sign(beat), now);
    if (beat.wants_stacks) stacks_wanted = true;
    if (rank == 0) {
      send(own, from);
    } else if (beat.has_stacks) {
      stacks_everywhere = true;
    }
  }

  std::optional<Suspect> find_suspect() const {
    const auto found = judge->find(clock.seconds());
    if (!found) return std::nullopt;
    const Sign& sign = *judge->sign_of(found->rank);
    const auto& host = hosts[found->rank];
    return Suspect{found->rank, host, sign.phase,
                   found->is_silent ? fmt::format("rank {} on {} has not been heard of for {:.0f} s; it was {}",
                                                  found->rank, host, found->seconds, describe(sign))
                                    : fmt::format("rank {} on {} has not moved for {:.0f} s, in {}", found->rank, host,
                                                  found->seconds, describe(sign))};
  }
};

Watchdog::Watchdog(const World& world, double limit_seconds, std::function<void(const Suspect&)> on_hang)
    : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.rank = world.rank();
  impl.hosts = world.hosts();
  impl.judge.emplace(impl.rank, impl.hosts, std::max(limit_seconds, min_limit_seconds));
  impl.on_hang = std::move(on_hang);
  impl.peers.resize(impl.rank == 0 ? static_cast<std::size_t>(world.size()) : 1);
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
  watched = true;
  impl.thread = std::jthread([&impl](const std::stop_token& stop) { impl.work(stop); });
}

Watchdog::~Watchdog() = default;

void collect_stacks(double seconds) {
  stacks::start_writing();
  if (watched) stacks_wanted = true;
  const Stopwatch since;
  while (since.seconds() < seconds && !(watched ? stacks_everywhere.load() : stacks::written()))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace millrace
