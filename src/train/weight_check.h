#pragma once
#include <cstdint>

#include "millrace/train/trainer_context.h"

namespace millrace {

// What several trainers hold can only differ if a machine is damaged: an AgreedError(suspect_node) that names the ranks
// which hold something else. `step`: before whose update this is. Collective.
void compare_weights(const TrainerContext& context, std::int64_t step);

}  // namespace millrace
