#include "validation_losses.h"

#include <utility>

namespace millrace {

std::optional<ValidationLosses> measure_validation_losses(const TrainerContext& context,
                                                          const std::function<bool()>& is_leaving) {
  const auto measure = [&] { return context.validation->loss(context.trainers, is_leaving); };
  std::optional<ValidationLoss> trained = measure(), exported;
  if (!trained) return std::nullopt;
  if (!context.optimizer.has_ema()) return ValidationLosses{std::move(*trained), std::nullopt};
  context.optimizer.with_ema([&] { exported = measure(); });
  if (!exported) return std::nullopt;
  return ValidationLosses{std::move(*exported), std::move(trained)};
}

}  // namespace millrace
