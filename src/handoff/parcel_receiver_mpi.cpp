#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "millrace/comm/agree.h"
#include "millrace/comm/backoff.h"
#include "millrace/core/log.h"
#include "millrace/handoff/parcel_receiver.h"
#include "mpi_protocol.h"
#include "slots.h"

namespace millrace {
namespace {

// One producer, seen from the trainer.
struct ProducerPeer {
  ProducerPeer(const Group& group, int rank, const HandoffSize& size)
      : rank(rank),
        leased(std::make_shared<LeasedSlots>(size.slots, size.parcel_bytes)),
        notice_receive(group.receiver(rank, notice_tag, bytes_of(notice))),
        control_send(group.sender(rank, control_tag, bytes_of(control_on_its_way))) {
    for (int slot = 0; slot < size.slots; ++slot) {
      receives.push_back(group.receiver(rank, parcel_tag, leased->slots.slot(slot), leased));
      arm(slot);
    }
    notice_receive.start();
  }

  void poll() {
    if (!closed) {
      take_notices();
      take_arrivals();
      for (const int slot : leased->take_returned()) arm(slot);
      if (ended && arrived_parcels == last_notice.parcels) close();
    }
    tell();
  }

  // The oldest complete parcel.
  std::optional<int> take() {
    if (arrived.empty()) return std::nullopt;
    const int slot = arrived.front();
    arrived.pop_front();
    return slot;
  }

  bool finished() const { return closed && arrived.empty(); }
  bool idle() { return closed && !control_is_new && control_send.done(); }

  void stop() {
    if (closed) return;  // BYE is the last word: nobody receives another
    control.stop = true;
    control_is_new = true;
    tell();
  }

  const int rank;
  const std::shared_ptr<LeasedSlots> leased;
  std::deque<int> arrived;  // complete parcels, oldest first
  Notice last_notice;
  bool error_reported = false;

 private:
  void arm(int slot) {
    receives[slot].start();
    armed.push_back(slot);
    ++control.credits;
    control_is_new = true;
  }

  void take_notices() {
    while (!ended && notice_receive.done()) {
      last_notice = notice;
      ended = notice.ended;
      if (!ended) notice_receive.start();
    }
  }

  // Messages of one tag arrive in the order in which their slots were armed.
  void take_arrivals() {
    while (!armed.empty() && receives[armed.front()].done()) {
      const int slot = armed.front();
      const auto& header = leased->slots.header(slot);
      if (receives[slot].bytes() != sizeof(ParcelHeader) + header.bytes) {
        fail(Exit::suspect_node, "a parcel from rank {} arrived with {} bytes instead of {}", rank,
             receives[slot].bytes(), sizeof(ParcelHeader) + header.bytes);
      }
      armed.pop_front();
      arrived.push_back(slot);
      ++arrived_parcels;
    }
  }

  void close() {
    for (const int slot : armed) receives[slot].cancel();
    armed.clear();
    control.bye = true;
    control_is_new = true;
    closed = true;
  }

  // Says what is new as soon as the last message has left.
  void tell() {
    if (!control_is_new || !control_send.done()) return;
    control_on_its_way = control;
    control_send.start(sizeof control_on_its_way);
    control.credits = 0;
    control_is_new = false;
  }

  Notice notice;
  Control control, control_on_its_way;
  bool control_is_new = false, ended = false, closed = false;
  std::uint64_t arrived_parcels = 0;
  std::deque<int> armed;
  std::vector<Transfer> receives;
  Transfer notice_receive, control_send;
};

// NOTE [Parcels move by themselves] MPI moves messages only inside its calls, and a trainer computes for most of its
// time. So a thread of this class looks at them every millisecond, and what was sent during a step has arrived at its
// end.
class MpiReceiver final : public ParcelReceiver {
 public:
  MpiReceiver(Group group, const std::vector<int>& producer_ranks, HandoffSize size) : group_(std::move(group)) {
    size = agree_on(group_, size);
    for (const int rank : producer_ranks) peers_.emplace_back(group_, rank, size);
    poll();
    mover_ = std::jthread([this](const std::stop_token& stop) { move_until(stop); });
  }

  std::optional<Parcel> receive(double timeout_seconds) override {
    Backoff backoff;
    for (;; backoff.pause()) {
      const auto state = look();
      poll_peers();
      auto parcel = take();
      if (!parcel) throw_error_of_producer();
      if (parcel || all_finished() || backoff.seconds() >= timeout_seconds) return parcel;
    }
  }

  void poll() override {
    const auto state = look();
    poll_peers();
  }

  void request_stop() override {
    const auto state = look();
    for (auto& peer : peers_) peer.stop();
  }

  int signal_number() const override {
    const std::lock_guard state(mutex_);
    for (const auto& peer : peers_) {
      if (peer.last_notice.signal != 0) return peer.last_notice.signal;
    }
    return 0;
  }

  void finish(double limit_seconds) override {
    request_stop();
    for (Backoff backoff; !drop_until_idle(); backoff.pause()) {
      if (backoff.awake_seconds() <= limit_seconds) continue;
      if (const auto busy = busy_producers(); !busy.empty())
        fail(Exit::suspect_node, "the producers on ranks {} did not stop within {:.0f} s", busy, limit_seconds);
    }
    const auto state = look();
    for (const auto& peer : peers_) {
      if (peer.last_notice.failed && !peer.error_reported) log::warning("{}", error_of(peer).what());
    }
  }

  std::string producer_name(int producer) const override {
    return fmt::format("the producer on rank {}", peers_[producer].rank);
  }

  int ready() override {
    const auto state = look();
    poll_peers();
    std::size_t ready = 0;
    for (const auto& peer : peers_) ready += peer.arrived.size();
    return static_cast<int>(ready);
  }

 private:
  // Everything below is looked at by one thread at a time. Throws what has ended the mover, as everything does that
  // would move messages; what only tells of them does not.
  std::unique_lock<std::mutex> look() const {
    std::unique_lock state(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    return state;
  }

  void move_until(const std::stop_token& stop) {
    for (; !stop.stop_requested(); std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
      const std::lock_guard state(mutex_);
      try {
        poll_peers();
      } catch (...) {
        failure_ = std::current_exception();
        return;
      }
    }
  }

  void poll_peers() {
    for (auto& peer : peers_) peer.poll();
  }

  bool all_finished() const {
    return std::all_of(peers_.begin(), peers_.end(), [](const ProducerPeer& peer) { return peer.finished(); });
  }

  bool drop_until_idle() {
    const auto state = look();
    poll_peers();
    for (auto& peer : peers_) drop_arrivals(peer);
    return std::all_of(peers_.begin(), peers_.end(), [](ProducerPeer& peer) { return peer.idle(); });
  }

  // Of those that have not ended.
  std::string busy_producers() {
    const auto state = look();
    std::vector<int> ranks;
    for (auto& peer : peers_)
      if (!peer.idle()) ranks.push_back(peer.rank);
    return fmt::format("{}", fmt::join(ranks, ", "));
  }

  // Producers in turn.
  std::optional<Parcel> take() {
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      const int producer = next_;
      next_ = (next_ + 1) % static_cast<int>(peers_.size());
      if (const auto slot = peers_[producer].take()) return lease(producer, *slot);
    }
    return std::nullopt;
  }

  Parcel lease(int producer, int slot) {
    const auto& leased = peers_[producer].leased;
    const auto& header = leased->slots.header(slot);
    return Parcel(leased->slots.parcel(slot).first(header.bytes), producer,
                  [leased, slot] { leased->give_back(slot); });
  }

  static void drop_arrivals(ProducerPeer& peer) {
    while (const auto slot = peer.take()) peer.leased->give_back(*slot);
  }

  static RelayedError error_of(const ProducerPeer& peer) {
    return {static_cast<Exit>(peer.last_notice.exit),
            fmt::format("producer on rank {}: {}", peer.rank, peer.last_notice.message), peer.last_notice.hint};
  }

  void throw_error_of_producer() {
    for (auto& peer : peers_) {
      if (!peer.finished() || !peer.last_notice.failed || peer.error_reported) continue;
      peer.error_reported = true;
      throw error_of(peer);
    }
  }

  Group group_;
  mutable std::mutex mutex_;
  std::deque<ProducerPeer> peers_;  // never move: transfers refer to their memory
  int next_ = 0;
  std::exception_ptr failure_;
  std::jthread mover_;  // ends before what it looks at
};

}  // namespace

std::unique_ptr<ParcelReceiver> make_mpi_receiver(const Group& group, std::vector<int> producer_ranks,
                                                  HandoffSize size) {
  return std::make_unique<MpiReceiver>(group.duplicate(), producer_ranks, size);
}

}  // namespace millrace
