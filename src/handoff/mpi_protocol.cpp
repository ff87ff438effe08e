#include "mpi_protocol.h"

namespace millrace {

HandoffSize agree_on(const Group& group, HandoffSize size) {
  const auto parcel_bytes = group.largest(static_cast<std::int64_t>(size.parcel_bytes));
  const auto fewest = group.smallest(size.slots), most = group.largest(size.slots);
  if (fewest != most) fail(Exit::usage, "handoff: ranks disagree on the number of slots ({} to {})", fewest, most);
  ensure(size.slots > 0 && parcel_bytes > 0, "handoff: needs at least one slot and a parcel size");
  return {static_cast<std::size_t>(parcel_bytes), size.slots};
}

}  // namespace millrace
