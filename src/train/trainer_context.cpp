#include "millrace/train/trainer_context.h"

namespace millrace {

RoleCounts TrainerContext::roles() const {
  return {static_cast<int>(trainer_ranks.size()), static_cast<int>(producer_ranks.size()),
          !producer_ranks.empty() && producer_ranks.front().rank == trainer_ranks.front().rank,
          static_cast<int>(data.stripes.stripes)};
}

}  // namespace millrace
