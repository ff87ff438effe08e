#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include "millrace/comm/transfer.h"

namespace millrace {

// Size of the largest parcel between processes: a message less its header.
inline constexpr std::size_t max_parcel_bytes = message_bytes - 64;

// What both sides must agree on before the first parcel.
struct HandoffSize {
  std::size_t parcel_bytes = 0;  // no parcel is larger; the largest value of all ranks counts
  int slots = 4;                 // parcels between one producer and one trainer at any time, the held ones included
};

// A received parcel, and the right to its slot: the producer may fill the slot again once this object is gone. Move
// only; may be destroyed on any thread, also after its receiver.
class Parcel {
 public:
  using Release = std::function<void()>;
  Parcel(std::span<const std::byte> bytes, int producer, Release release)
      : bytes_(bytes), producer_(producer), release_(std::move(release)) {}
  Parcel(Parcel&& other) noexcept
      : bytes_(other.bytes_), producer_(other.producer_), release_(std::exchange(other.release_, nullptr)) {}
  Parcel& operator=(Parcel&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(producer_, other.producer_);
    std::swap(release_, other.release_);
    return *this;
  }
  ~Parcel() {
    if (release_) release_();
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  // Position of the sending producer in the receiver's list of producers.
  int producer() const { return producer_; }

 private:
  std::span<const std::byte> bytes_;
  int producer_;
  Release release_;
};

}  // namespace millrace
