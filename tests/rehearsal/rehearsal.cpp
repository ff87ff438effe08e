#include "rehearsal.h"

#include "millrace/comm/world.h"
#include "pretended_gpu.h"

namespace millrace {

std::unique_ptr<Collectives> rehearse(const Group& group) {
  return make_rehearsed_collectives(group, world_rank(), pretended::host_stream);
}

}  // namespace millrace
