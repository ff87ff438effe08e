#pragma once
#include <functional>
#include <optional>

#include "millrace/train/trainer_context.h"

namespace millrace {

// What `context.validation` finds with the trained weights, and with their EMA where there is one. Nothing when the
// trainers are to leave meanwhile, which `is_leaving` is asked, all trainers at the same place. Collective.
std::optional<ValidationLosses> measure_validation_losses(const TrainerContext& context,
                                                          const std::function<bool()>& is_leaving);

}  // namespace millrace
