#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "millrace/core/error.h"
#include "millrace/handoff/parcel.h"

namespace millrace {

// In front of every parcel; as long as a cache line, so that the parcel keeps the alignment of its slot.
struct alignas(64) ParcelHeader {
  std::uint64_t bytes;
};
static_assert(sizeof(ParcelHeader) + max_parcel_bytes == message_bytes);

// Equal slots in one piece of memory, each a header and a parcel. Pages that nobody writes cost nothing: a pair that
// never exchanges a parcel takes only address space.
class Slots {
 public:
  Slots(int count, std::size_t parcel_bytes)
      : count_(count),
        slot_bytes_((sizeof(ParcelHeader) + parcel_bytes + page - 1) / page * page),
        memory_(static_cast<std::byte*>(std::aligned_alloc(page, count * slot_bytes_)), &std::free) {
    if (!memory_) fail(Exit::io, "no memory for {} parcels of {} bytes", count, parcel_bytes);
  }

  int count() const { return count_; }
  std::span<std::byte> all() const { return {memory_.get(), count_ * slot_bytes_}; }
  // Header and parcel together: what travels.
  std::span<std::byte> slot(int index) const { return all().subspan(index * slot_bytes_, slot_bytes_); }
  ParcelHeader& header(int index) const { return *reinterpret_cast<ParcelHeader*>(slot(index).data()); }
  std::span<std::byte> parcel(int index) const { return slot(index).subspan(sizeof(ParcelHeader)); }

 private:
  static constexpr std::size_t page = 4096;
  int count_;
  std::size_t slot_bytes_;
  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
};

// The trainer's slots of one producer, kept alive by the parcels that lie in them, and the list of those given back.
class LeasedSlots {
 public:
  LeasedSlots(int count, std::size_t parcel_bytes) : slots(count, parcel_bytes) {}

  // From any thread.
  void give_back(int slot) {
    std::lock_guard lock(mutex_);
    returned_.push_back(slot);
  }
  std::vector<int> take_returned() {
    std::lock_guard lock(mutex_);
    return std::exchange(returned_, {});
  }

  const Slots slots;

 private:
  std::mutex mutex_;
  std::vector<int> returned_;
};

}  // namespace millrace
