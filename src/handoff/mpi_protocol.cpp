#include "mpi_protocol.h"

#include <array>

namespace millrace {

HandoffSize agree_on(const Group& group, HandoffSize size) {
  std::array<std::int64_t, 3> largest = {static_cast<std::int64_t>(size.parcel_bytes), size.slots, -size.slots};
  group.all_reduce_max(std::span<std::int64_t>(largest));
  if (largest[1] != -largest[2]) {
    fail(Exit::usage, "handoff: ranks disagree on the number of slots ({} to {})", -largest[2], largest[1]);
  }
  ensure(size.slots > 0 && largest[0] > 0, "handoff: needs at least one slot and a parcel size");
  return {static_cast<std::size_t>(largest[0]), size.slots};
}

}  // namespace millrace
