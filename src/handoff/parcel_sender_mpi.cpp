#include <deque>

#include "millrace/core/phase.h"
#include "millrace/handoff/parcel_sender.h"
#include "mpi_protocol.h"
#include "slots.h"

namespace millrace {
namespace {

// One trainer, seen from the producer.
struct TrainerPeer {
  TrainerPeer(const Group& group, int rank, const HandoffSize& size)
      : slots(size.slots, size.parcel_bytes),
        control_receive(group.receiver(rank, control_tag, bytes_of(control))),
        notice_send(group.sender(rank, notice_tag, bytes_of(notice_on_its_way))) {
    for (int slot = 0; slot < size.slots; ++slot) sends.push_back(group.sender(rank, parcel_tag, slots.slot(slot)));
    control_receive.start();
  }

  void poll() {
    for (auto& send : sends) send.done();
    while (!closed && control_receive.done()) {
      credits += control.credits;
      stopped |= control.stop;
      closed |= control.bye;
      if (!closed) control_receive.start();
    }
    if (notice_is_new && notice_send.done()) {
      notice_on_its_way = notice;
      notice_send.start(sizeof notice_on_its_way);
      notice_is_new = false;
    }
  }

  // A slot whose last parcel has left, if the trainer has room for another one.
  std::optional<int> free_slot() {
    if (credits == 0) return std::nullopt;
    for (int slot = 0; slot < slots.count(); ++slot) {
      if (sends[slot].done()) return slot;
    }
    return std::nullopt;
  }

  bool idle() {
    bool idle = closed && !notice_is_new && notice_send.done();
    for (auto& send : sends) idle &= send.done();
    return idle;
  }

  void tell() { notice_is_new = true; }

  Slots slots;
  Control control;
  Notice notice, notice_on_its_way;
  bool notice_is_new = false, stopped = false, closed = false;
  std::uint64_t credits = 0;
  std::vector<Transfer> sends;
  Transfer control_receive, notice_send;
};

class MpiSender final : public ParcelSender {
 public:
  MpiSender(Group group, const std::vector<int>& trainer_ranks, HandoffSize size)
      : ParcelSender(static_cast<int>(trainer_ranks.size())), group_(std::move(group)), size_(agree_on(group_, size)) {
    for (const int rank : trainer_ranks) peers_.emplace_back(group_, rank, size_);
  }

  bool try_send(int trainer, std::span<const std::byte> bytes) override {
    ensure(bytes.size() <= size_.parcel_bytes, "handoff: parcel larger than agreed");
    poll();
    TrainerPeer& peer = peers_[trainer];
    const auto slot = peer.free_slot();
    if (peer.stopped || !slot) return false;
    peer.slots.header(*slot) = {.bytes = bytes.size()};
    std::copy(bytes.begin(), bytes.end(), peer.slots.parcel(*slot).begin());
    peer.sends[*slot].start(sizeof(ParcelHeader) + bytes.size());
    --peer.credits;
    ++peer.notice.parcels;
    ++phase::moves;
    ++phase::steps_taken;
    return true;
  }

  void poll() override {
    for (auto& peer : peers_) peer.poll();
  }

  bool stopped(int trainer) const override { return peers_[trainer].stopped; }

  void report_signal(int signal) override {
    if (finished_) return;
    for (auto& peer : peers_) {
      peer.notice.signal = signal;
      peer.tell();
    }
    poll();
  }

  void finish(const std::optional<Error>& error, double limit_seconds) override {
    if (std::exchange(finished_, true)) return;
    for (auto& peer : peers_) {
      peer.notice.ended = true;
      if (error) peer.notice.set_error(*error);
      peer.tell();
    }
    for (Backoff backoff; !all_idle(); backoff.pause()) {
      poll();
      if (backoff.awake_seconds() > limit_seconds) {
        fail(Exit::suspect_node, "rank {}: a trainer did not take its last parcels within {:.0f} s", group_.rank(),
             limit_seconds);
      }
    }
  }

 private:
  void wait_for_slot(int, Backoff& backoff) override { backoff.pause(); }

  bool all_idle() {
    bool idle = true;
    for (auto& peer : peers_) idle &= peer.idle();
    return idle;
  }

  Group group_;
  HandoffSize size_;
  std::deque<TrainerPeer> peers_;  // never move: transfers refer to their memory
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<ParcelSender> make_mpi_sender(const Group& group, std::vector<int> trainer_ranks, HandoffSize size) {
  return std::make_unique<MpiSender>(group.duplicate(), trainer_ranks, size);
}

}  // namespace millrace
