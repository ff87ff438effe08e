#include "pictures.h"

#include "millrace/comm/agree.h"
#include "millrace/comm/fault.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/image/grid.h"
#include "pace.h"

namespace millrace {

Pictures::Pictures(const TrainerContext& context, Progress* progress, const PaintingLimit& limit)
    : context_(context), progress_(progress), limit_(limit) {}

std::optional<double> Pictures::paint(std::int64_t step, const std::function<bool(bool)>& gives_up) {
  if (have_had_their_share(step)) return std::nullopt;
  enter_slow(context_, phase::painting);
  const Stopwatch watch;
  torch::Tensor latents;
  const auto paint = [&] { latents = painted_latents(step, gives_up); };
  if (context_.optimizer.has_ema())
    context_.optimizer.with_ema(paint);
  else
    paint();
  const Stopwatch decoding;
  const bool is_shown = latents.defined() && show(step, latents, watch);
  context_.trainers.barrier();  // the first one decodes alone
  painting_seconds_ += watch.seconds();
  phase::current = phase::accounting;
  return is_shown ? std::optional(decoding.seconds()) : std::nullopt;
}

// Collective.
bool Pictures::have_had_their_share(std::int64_t step) const {
  const bool is_over =
      context_.trainers.any(is_root() && limit_.is_exceeded(painting_seconds_, since_start_.seconds()));
  if (is_over && is_root())
    log::info(
        "no pictures of step {}: painting has taken {:.0f} s already, more than {:.0f}% of the time; a longer "
        "samples.every, fewer samples.count or samples.steps would do",
        step, painting_seconds_, 100 * limit_.share);
  return is_over;
}

torch::Tensor Pictures::painted_latents(std::int64_t step, const std::function<bool(bool)>& gives_up) const try {
  return context_.painter->paint(context_.trainers, gives_up);
} catch (const AgreedError& error) {
  fault::forget();  // the run goes on without them
  if (is_root()) log::warning("pictures of step {}: {}", step, error.what());
  return {};
}

bool Pictures::show(std::int64_t step, const torch::Tensor& latents, const Stopwatch& watch) try {
  const auto images = context_.painter->decode(latents);
  const auto path = progress_->picture(run_file::samples, step, make_grid(images, context_.painter->prompts()));
  const double took = watch.seconds(), since = since_start_.seconds() - shown_at_;
  log::info("painted {} pictures in {:.1f} s, {:.1f}% of the time since {}: {}", images.size(), took,
            100 * took / since, shown_at_ > 0 ? "the last ones" : "the start", path.string());
  shown_at_ = since_start_.seconds();
  return true;
} catch (...) {
  log::warning("pictures of step {}: {}", step, present_error().what());
  fault::forget();
  return false;
}

}  // namespace millrace
