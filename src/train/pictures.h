#pragma once
#include <torch/types.h>

#include <cstdint>
#include <functional>

#include "millrace/core/stopwatch.h"
#include "millrace/train/loop.h"

namespace millrace {

// Painting may take a fiftieth of the time, and five minutes more, for a start.
bool exceeds_share_of_painting(double painting_seconds, double seconds_in_training);

// The pictures of a run, painted between two steps as long as that takes little of its time. They are no reason to end
// it: what goes wrong with them is a warning, as long as all trainers know of it.
class Pictures {
 public:
  Pictures(const TrainerContext& context, Progress* progress);

  // Those of a step, with the weights that export gives. `gives_up`: as PicturePainter::paint asks it. Returns the
  // seconds in which it was not asked, while the first trainer decoded. Collective.
  double paint(std::int64_t step, const std::function<bool(bool)>& gives_up);

 private:
  bool is_root() const { return context_.trainers.rank() == 0; }
  bool have_had_their_share(std::int64_t step) const;
  torch::Tensor painted_latents(std::int64_t step, const std::function<bool(bool)>& gives_up) const;
  void show(std::int64_t step, const torch::Tensor& latents, const Stopwatch& watch);

  const TrainerContext& context_;
  Progress* progress_;  // on rank 0
  const Stopwatch since_start_{};
  double painting_seconds_ = 0, shown_at_ = 0;  // the last ones, in seconds since the start
};

}  // namespace millrace
