#pragma once
#include <functional>
#include <optional>

#include "millrace/train/trainer_context.h"

namespace millrace {

// Runs `context.validation` with the trained weights, and with their EMA if there is one. Nothing if the trainers have
// to leave meanwhile: `is_leaving` is asked on all trainers at the same places. Collective.
std::optional<ValidationLosses> measure_validation_losses(const TrainerContext& context,
                                                          const std::function<bool()>& is_leaving);

}  // namespace millrace
