#include "millrace/handoff/in_process_handoff.h"

#include <chrono>
#include <condition_variable>
#include <deque>

#include "millrace/comm/world.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "slots.h"

namespace millrace {
namespace {

// What both threads share. Kept alive by both ends and by every parcel that is still held.
struct Shared {
  explicit Shared(const HandoffSize& size) : size(size), slots(size.slots, size.parcel_bytes) {
    for (int slot = 0; slot < size.slots; ++slot) free.push_back(slot);
  }

  void give_back(int slot) {
    std::lock_guard lock(mutex);
    free.push_back(slot);
    changed.notify_all();
  }

  const HandoffSize size;
  const Slots slots;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<int> free, arrived;  // the rest of the slots are held by the trainer, or being filled
  bool stop = false, ended = false;
  int signal = 0;
  std::optional<Error> error;
};

class InProcessSender final : public ParcelSender {
 public:
  explicit InProcessSender(std::shared_ptr<Shared> shared) : ParcelSender(1), shared_(std::move(shared)) {}

  bool try_send(int trainer, std::span<const std::byte> bytes) override {
    ensure(trainer == 0, "handoff: one trainer in a process");
    ensure(bytes.size() <= shared_->size.parcel_bytes, "handoff: parcel larger than agreed");
    const auto slot = take_free_slot();
    if (!slot) return false;
    shared_->slots.header(*slot) = {.bytes = bytes.size()};
    std::copy(bytes.begin(), bytes.end(), shared_->slots.parcel(*slot).begin());
    std::lock_guard lock(shared_->mutex);
    shared_->arrived.push_back(*slot);
    shared_->changed.notify_all();
    return true;
  }

  void poll() override {}

  bool stopped(int) const override {
    std::lock_guard lock(shared_->mutex);
    return shared_->stop;
  }

  void report_signal(int signal) override {
    std::lock_guard lock(shared_->mutex);
    shared_->signal = signal;
  }

  void finish(const std::optional<Error>& error, double) override {
    std::lock_guard lock(shared_->mutex);
    if (std::exchange(shared_->ended, true)) return;
    shared_->error = error;
    shared_->changed.notify_all();
  }

 private:
  std::optional<int> take_free_slot() {
    std::lock_guard lock(shared_->mutex);
    if (shared_->stop || shared_->free.empty()) return std::nullopt;
    const int slot = shared_->free.front();
    shared_->free.pop_front();
    return slot;
  }

  void wait_for_slot(int, Backoff&) override {
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait_for(lock, std::chrono::milliseconds(20),
                              [&] { return shared_->stop || !shared_->free.empty(); });
  }

  std::shared_ptr<Shared> shared_;
};

class InProcessReceiver final : public ParcelReceiver {
 public:
  explicit InProcessReceiver(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  std::optional<Parcel> receive(double timeout_seconds) override {
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait_for(lock, std::chrono::duration<double>(timeout_seconds),
                              [&] { return !shared_->arrived.empty() || shared_->ended; });
    if (!shared_->arrived.empty()) return take();
    if (shared_->error) throw *std::exchange(shared_->error, std::nullopt);
    return std::nullopt;
  }

  void poll() override {}

  void request_stop() override {
    std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
    shared_->changed.notify_all();
  }

  int signal_number() const override {
    std::lock_guard lock(shared_->mutex);
    return shared_->signal;
  }

  void finish(double limit_seconds) override {
    request_stop();
    std::unique_lock lock(shared_->mutex);
    const std::chrono::duration<double> limit(limit_seconds);
    if (!shared_->changed.wait_for(lock, limit, [&] { return shared_->ended; })) {
      fail(Exit::suspect_node, "the producer thread did not stop within {:.0f} s", limit_seconds);
    }
    shared_->free.insert(shared_->free.end(), shared_->arrived.begin(), shared_->arrived.end());
    shared_->arrived.clear();
    if (shared_->error) log::warning("producer: {}", shared_->error->what());
  }

  std::string producer_name(int) const override { return fmt::format("the producer thread of rank {}", world_rank()); }

  int ready() override {
    std::lock_guard lock(shared_->mutex);
    return static_cast<int>(shared_->arrived.size());
  }

 private:
  Parcel take() {
    const int slot = shared_->arrived.front();
    shared_->arrived.pop_front();
    const auto& header = shared_->slots.header(slot);
    return Parcel(shared_->slots.parcel(slot).first(header.bytes), 0,
                  [shared = shared_, slot] { shared->give_back(slot); });
  }

  std::shared_ptr<Shared> shared_;
};

}  // namespace

InProcessHandoff make_in_process_handoff(HandoffSize size) {
  ensure(size.slots > 0 && size.parcel_bytes > 0, "handoff: needs at least one slot and a parcel size");
  const auto shared = std::make_shared<Shared>(size);
  return {std::make_unique<InProcessSender>(shared), std::make_unique<InProcessReceiver>(shared)};
}

}  // namespace millrace
