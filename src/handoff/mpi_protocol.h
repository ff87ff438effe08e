#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "millrace/comm/group.h"
#include "millrace/core/error.h"
#include "millrace/handoff/parcel.h"

// NOTE [Handoff protocol]
// Between every producer and every trainer run three streams of messages, one tag each:
//   parcels   producer -> trainer   header and bytes, only into slots that the trainer has armed and granted a credit
//   controls  trainer -> producer   credits for slots armed since the last one, STOP, and BYE as the very last
//   notices   producer -> trainer   stopped by a signal; the end, with the number of parcels sent before it
// Controls and notices are not queued: each side keeps what it has to say in one small struct and sends it whenever the
// last one has left, so their number in flight is bounded too. The end can overtake parcels (another tag), hence the
// count. The trainer answers the end with BYE when all parcels are there; after it neither side has a message open.
namespace millrace {

enum HandoffTag : int { parcel_tag = 1, control_tag = 2, notice_tag = 3 };

struct Control {
  std::uint32_t credits = 0;
  bool stop = false;
  bool bye = false;
};

struct Notice {
  int signal = 0;
  bool ended = false;
  bool failed = false;
  int exit = 0;
  std::uint64_t parcels = 0;  // sent before the end
  char message[1500] = {};
  char hint[500] = {};

  void set_error(const Error& error) {
    failed = true;
    exit = static_cast<int>(error.exit());
    copy(error.what(), message, sizeof message);
    copy(error.hint(), hint, sizeof hint);
  }

  static void copy(std::string_view text, char* into, std::size_t capacity) {
    const std::size_t length = std::min(text.size(), capacity - 1);
    std::memcpy(into, text.data(), length);
    into[length] = 0;
  }
};

template <class T>
std::span<std::byte> bytes_of(T& message) {
  return std::as_writable_bytes(std::span(&message, 1));
}

// The larger parcel size of all ranks; the number of slots must be the same on all. Collective.
HandoffSize agree_on(const Group& group, HandoffSize size);

}  // namespace millrace
