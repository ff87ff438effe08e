#pragma once
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "millrace/core/stopwatch.h"
#include "millrace/train/progress.h"
#include "millrace/train/trainer_context.h"

namespace millrace {

// How long painting may take: 2 % of the time in training, plus five minutes at the start.
struct PaintingLimit {
  double share = 0.02;
  double for_a_start = 300;  // seconds

  bool is_exceeded(double painting_seconds, double seconds_in_training) const {
    return painting_seconds > for_a_start + share * seconds_in_training;
  }
};

// Paints the pictures of a run between steps, as long as that takes little of its time. They are no reason to end the
// run: what goes wrong with them is a warning, as long as all trainers know of it.
class Pictures {
 public:
  Pictures(const TrainerContext& context, Progress* progress, const PaintingLimit& limit = {});

  // Paints the pictures of a step, with the weights that export gives. `gives_up` as in PicturePainter::paint. Returns,
  // on the first trainer, the seconds in which `gives_up` was not asked because pictures were decoded; nothing if none
  // were shown. Collective.
  std::optional<double> paint(std::int64_t step, const std::function<bool(bool)>& gives_up);

 private:
  bool is_root() const { return context_.is_root(); }
  bool have_had_their_share(std::int64_t step) const;
  torch::Tensor painted_latents(std::int64_t step, const std::function<bool(bool)>& gives_up) const;
  bool show(std::int64_t step, const torch::Tensor& latents, const Stopwatch& watch);

  const TrainerContext& context_;
  Progress* progress_;  // on rank 0
  const PaintingLimit limit_;
  const Stopwatch since_start_{};
  double painting_seconds_ = 0, shown_at_ = 0;  // when the last ones were, in seconds since the start
};

}  // namespace millrace
