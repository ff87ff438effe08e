#include "mpi_protocol.h"

#include <array>

namespace millrace {

HandoffConfig agree_on(const Group& group, HandoffConfig config) {
  std::array<std::int64_t, 3> largest = {static_cast<std::int64_t>(config.parcel_bytes), config.slots, -config.slots};
  group.all_reduce_max(std::span<std::int64_t>(largest));
  if (largest[1] != -largest[2]) {
    fail(Exit::usage, "handoff: ranks disagree on the number of slots ({} to {})", -largest[2], largest[1]);
  }
  ensure(config.slots > 0 && largest[0] > 0, "handoff: needs at least one slot and a parcel size");
  return {static_cast<std::size_t>(largest[0]), config.slots};
}

}  // namespace millrace
