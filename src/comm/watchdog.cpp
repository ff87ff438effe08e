#include "millrace/comm/watchdog.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "beat_socket.h"
#include "hang_judge.h"
#include "millrace/core/leave.h"
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
constexpr double judge_seconds = 0.25;
constexpr double first_sign_seconds = 60;  // of every rank, unless the network drops its datagrams
constexpr double own_end_seconds = 45;     // for who found the hang to write why, and for the launcher to end all

// Of this process: its threads and its watchdog talk of it. The numbers are those of a Beat.
std::atomic<bool> watched{false};
std::atomic<int> stacks_wanted{0}, stacks_everywhere{0};

void raise_to(std::atomic<int>& number, int to) {
  for (int present = number; present < to && !number.compare_exchange_weak(present, to);) {
  }
}

// From all ranks, be it those that others want already.
int want_stacks() {
  const int next = stacks_everywhere + 1;
  raise_to(stacks_wanted, next);
  return next;
}

// Who writes a line of the log waits for the file system, as between steps.
const char* phase_to_tell() {
  const char* const present = phase::current;
  return phase::log_writers > 0 && std::string_view(present) == phase::training ? phase::accounting : present;
}

std::string describe(const Sign& sign) {
  const std::string step = sign.step ? fmt::format(" step {}", sign.step) : "";
  return sign.awaited.empty() ? fmt::format("{}{}", sign.phase, step)
                              : fmt::format("waiting in {}, {}{}", sign.awaited, sign.phase, step);
}

Sign to_sign(const Beat& beat) {
  return {beat.phase, beat.awaited,           beat.leaves != Beat::Leaves::no,
          beat.step,  beat.unchanged_seconds, beat.slow_step_seconds};
}

}  // namespace

struct Watchdog::Impl {
  // Of another rank; rank 0 has these of all, the others of rank 0 alone.
  struct Peer {
    std::optional<BeatAddress> address;  // nothing has come from it yet
    double heard = 0;
    bool leaves = false;
    int has_stacks = 0;
  };

  int rank;
  std::vector<std::string> hosts;
  std::function<void(const Suspect&)> on_hang;
  BeatSocket socket;
  std::optional<BeatAddress> root;
  std::uint64_t run = 0;
  std::vector<Peer> peers;
  std::optional<HangJudge> judge;
  SlowStep slow_step;
  Beat own;
  Stopwatch clock, unchanged, since_stacks, since_judged;
  bool has_looked_for_mute = false, was_told_to_end = false;
  int stacks_begun = 0;  // the last time that this rank has begun to write them
  std::uint64_t seen_moves = 0;
  std::jthread thread;

  ~Impl() {
    if (thread.joinable()) {
      thread.request_stop();
      thread.join();
      watched = false;
    }
  }

  void work(const std::stop_token& stop) {
    Stopwatch since_beat, since_turn;
    std::optional<Suspect> suspect;
    int its_stacks = 0;
    for (Stopwatch since_suspect; !stop.stop_requested(); receive()) {
      if (since_turn.lap() > pause_seconds) forget_the_pause();
      slow_step.look(phase_to_tell(), phase::step, clock.seconds());
      if (own.run != run || since_beat.seconds() >= beat_seconds) {
        since_beat = Stopwatch();
        look_at_this_process();
        if (root) socket.send(own, *root);
      }
      see_to_stacks();
      if (rank == 0 && clock.seconds() > first_sign_seconds && !std::exchange(has_looked_for_mute, true))
        warn_of_mute_ranks();
      if (!suspect && since_judged.seconds() >= judge_seconds) {
        since_judged = Stopwatch();
        suspect = to_suspect(judge->find(clock.seconds()));
        if (!suspect) continue;
        since_suspect = Stopwatch();
        its_stacks = want_stacks();
      } else if (suspect && (stacks_everywhere >= its_stacks || since_suspect.seconds() > stacks_seconds)) {
        const auto now = to_suspect(judge->judge(suspect->rank, clock.seconds()));
        if (now) {
          tell_that_this_rank(Beat::Leaves::ends_run);
          on_hang(*now);
          return;
        }
        raise_to(stacks_everywhere, its_stacks);
        tell_that_it_moves(*suspect);
        suspect.reset();
      }
    }
    tell_that_this_rank(Beat::Leaves::in_order);
  }

  // By a thread of its own: the log's file system may be away.
  static void tell_that_it_moves(const Suspect& suspect) {
    std::thread([what = suspect.what] {
      log::warning("{}; meanwhile this is over, and the run goes on", what);
    }).detach();
  }

  void warn_of_mute_ranks() const {
    const auto mute = judge->never_heard();
    if (mute.empty()) return;
    std::thread([count = mute.size(), ranks = peers.size(), rank = mute.front(),
                 host = hosts[static_cast<std::size_t>(mute.front())]] {
      log::warning("no datagram has come from {} of {} ranks, one of them rank {} on {}: their hangs cannot be named",
                   count, ranks, rank, host);
    }).detach();
  }

  void tell_that_this_rank(Beat::Leaves how) {
    own.leaves = how;
    for (int i = 0; i < 3; ++i) {  // one may get lost
      if (root) socket.send(own, *root);
      tell_peers();
    }
  }

  void tell_peers() const {
    for (const auto& peer : peers)
      if (peer.address) socket.send(own, *peer.address);
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
    Beat now{.run = run, .rank = rank, .wants_stacks = stacks_wanted, .has_stacks = own_stacks(), .step = phase::step};
    copy(now.phase, phase_to_tell());
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

  int own_stacks() const {
    if (rank == 0) return stacks_everywhere;
    return stacks::written() ? stacks_begun : 0;
  }

  // Rank 0 hears who wants them, tells all, and hears who has them.
  void see_to_stacks() {
    const int wanted = stacks_wanted;
    if (stacks_everywhere >= wanted) return;
    if (std::exchange(stacks_begun, wanted) < wanted) stacks::start_writing();
    if (since_stacks.seconds() < look_seconds) return;
    since_stacks = Stopwatch();
    if (rank == 0 && stacks::written() && std::ranges::none_of(peers, [&](const Peer& peer) {
          return peer.address && !peer.leaves && clock.seconds() - peer.heard < alive_seconds &&
                 peer.has_stacks < wanted;
        }))
      raise_to(stacks_everywhere, wanted);
    own.wants_stacks = wanted;
    own.has_stacks = own_stacks();
    if (root) socket.send(own, *root);
    tell_peers();
  }

  // Waits a quarter of a second at most.
  void receive() {
    socket.receive([this](const Beat& beat, const BeatAddress& from) {
      if (beat.run == run && beat.rank >= 0 && beat.rank < static_cast<int>(peers.size())) hear(beat, from);
    });
  }

  void hear(const Beat& beat, const BeatAddress& from) {
    const double now = clock.seconds();
    peers[beat.rank] = {from, now, beat.leaves != Beat::Leaves::no, beat.has_stacks};
    judge->hear(beat.rank, to_sign(beat), now);
    raise_to(stacks_wanted, beat.wants_stacks);
    if (rank == 0) {
      socket.send(own, from);
    } else {
      raise_to(stacks_everywhere, beat.has_stacks);
    }
    if (beat.leaves == Beat::Leaves::ends_run && !std::exchange(was_told_to_end, true)) leave_after(beat.rank);
  }

  // Some launchers end no rank because another has ended (srun without -K).
  void leave_after(int other) const {
    leave_within(own_end_seconds, Exit::suspect_node,
                 fmt::format("rank {} on {} has ended the run, in which a rank hangs; its log says which", other,
                             hosts[static_cast<std::size_t>(other)]));
  }

  std::optional<Suspect> to_suspect(const std::optional<Standstill>& found) const {
    if (!found) return std::nullopt;
    const Sign& sign = *judge->sign_of(found->rank);
    const auto& host = hosts[found->rank];
    auto what = found->is_silent ? fmt::format("rank {} on {} has not been heard of for {:.0f} s; it was {}",
                                               found->rank, host, found->seconds, describe(sign))
                                 : fmt::format("rank {} on {} has not moved for {:.0f} s, in {}", found->rank, host,
                                               found->seconds, describe(sign));
    if (found->is_one_of_many) what += ", and ranks of other hosts with it: which one they wait for is not known";
    return Suspect{found->rank, host, sign.phase, sign.step, std::move(what), found->is_one_of_many};
  }
};

// Of ranks that cannot take part: they run without it. Collective.
static void warn_of(const World& world, const std::string& problem) {
  const auto problems = world.group().gather_strings(problem);
  const auto has_one = [](const std::string& text) { return !text.empty(); };
  const auto first = std::ranges::find_if(problems, has_one);
  if (!world.is_root() || first == problems.end()) return;
  const auto rank = first - problems.begin();
  log::warning("hangs of {} of {} ranks cannot be named: rank {} on {}: {}",
               rank == 0 ? world.size() : std::ranges::count_if(problems, has_one), world.size(), rank,
               world.hosts()[static_cast<std::size_t>(rank)], *first);
}

Watchdog::Watchdog(const World& world, double limit_seconds, std::function<void(const Suspect&)> on_hang)
    : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.rank = world.rank();
  impl.hosts = world.hosts();
  impl.judge.emplace(impl.rank, impl.hosts, std::max(limit_seconds, min_limit_seconds));
  impl.on_hang = std::move(on_hang);
  impl.peers.resize(impl.rank == 0 ? static_cast<std::size_t>(world.size()) : 1);
  std::string where;  // of rank 0's socket: "PORT RUN"
  if (impl.rank == 0) {
    std::random_device random;
    if (const auto port = impl.socket.bind())
      where = fmt::format("{} {}", *port, (std::uint64_t{random()} << 32) | random());
  }
  std::string problem = impl.socket.problem();
  where = world.group().broadcast(where);
  const auto space = where.find(' ');
  if (impl.rank != 0 && problem.empty() && space != where.npos) {
    const auto& host = impl.hosts.front();
    impl.root = find_beat_address(world.host() == host ? "127.0.0.1" : host, where.substr(0, space));
    if (!impl.root) problem = fmt::format("{}, the host of rank 0, has no IPv4 address there", host);
  }
  warn_of(world, problem);
  if (!impl.socket.is_open() || space == where.npos) return;
  impl.run = std::stoull(where.substr(space + 1));
  stacks_wanted = 0;
  stacks_everywhere = 0;
  watched = true;
  impl.thread = std::jthread([&impl](const std::stop_token& stop) { impl.work(stop); });
}

Watchdog::~Watchdog() = default;

void collect_stacks(double seconds) {
  const bool with_others = watched;
  const int number = want_stacks();
  if (!with_others) stacks::start_writing();
  const Stopwatch since;
  while (since.seconds() < seconds && !(with_others ? stacks_everywhere >= number : stacks::written()))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace millrace
