#pragma once
#include <cstdint>

#include "millrace/train/trainer_context.h"

namespace millrace {

// Compares what several trainers should hold alike, which can only differ if a machine is damaged:
// AgreedError(suspect_node) naming the ranks that differ. `step`: whose update comes next. Collective.
void compare_weights(const TrainerContext& context, std::int64_t step);

}  // namespace millrace
