#include "millrace/train/validation.h"

#include <torch/utils.h>

#include <algorithm>
#include <array>

#include "eval_mode.h"
#include "micro_batches.h"
#include "millrace/core/error.h"
#include "millrace/core/phase.h"
#include "millrace/nn/device.h"
#include "millrace/train/predict.h"

namespace millrace {
namespace {

// Sums of losses, weighted and not, by the tenth of the range in which a sample's timestep lies.
class TimestepSums {
 public:
  explicit TimestepSums(std::int64_t steps) : steps_(steps) {}

  // `errors`: f32, without the weights.
  void add(std::span<const std::int64_t> timesteps, std::span<const float> weights, const torch::Tensor& errors) {
    for (std::size_t i = 0; i < timesteps.size(); ++i) {
      const auto bucket = static_cast<std::size_t>(timesteps[i] * buckets / steps_);
      const float error = errors.const_data_ptr<float>()[i];
      sums_[bucket] += weights[i] * error;  // in float32, as training does
      sums_[buckets + bucket] += 1;
      sums_[2 * buckets + bucket] += error;
    }
  }

  // Of all trainers. Collective.
  ValidationLoss over(const Group& trainers, std::int64_t samples, bool is_weighted) {
    trainers.all_reduce_sum(std::span<double>(sums_));
    ValidationLoss loss;
    double unweighted = 0;
    for (std::int64_t b = 0; b < buckets; ++b) {
      const auto first_of = [&](std::int64_t bucket) { return (bucket * steps_ + buckets - 1) / buckets; };
      const double count = sums_[buckets + b], errors = sums_[2 * buckets + b];
      loss.by_timestep.push_back({first_of(b), first_of(b + 1) - 1, sums_[b] / count, errors / count});
      loss.mean += sums_[b] / static_cast<double>(samples);
      unweighted += errors / static_cast<double>(samples);
    }
    if (is_weighted) loss.unweighted = unweighted;
    return loss;
  }

 private:
  static constexpr std::int64_t buckets = 10;
  const std::int64_t steps_;
  std::array<double, 3 * buckets> sums_{};  // of losses; counts; of errors without weights
};

}  // namespace

Validation::Validation(UNet2DConditionModel unet, NoiseSchedule schedule, std::vector<EncodedBatch> batches,
                       Options options)
    : unet_(std::move(unet)),
      schedule_(std::move(schedule)),
      batches_(std::move(batches)),
      options_(std::move(options)) {
  options_.objective.caption_dropout = 0;
  options_.objective.input_perturbation = 0;
  if (!options_.text_encoder) return;
  for (const auto& batch : batches_) options_.text_encoder->check(batch.text, "data.validation");
}

std::optional<ValidationLoss> Validation::loss(const Group& trainers, const std::function<bool()>& gives_up) {
  const torch::NoGradGuard no_grad;
  const EvalMode eval_mode(*unet_);
  std::vector<Part> parts;
  for (const auto& batch : batches_) {
    const auto count = static_cast<std::int64_t>(batch.refs.size());
    for (std::int64_t begin = 0; begin < count; begin += options_.micro_batch)
      parts.push_back({&batch, begin, std::min(begin + options_.micro_batch, count)});
  }
  const auto most = trainers.largest(std::ssize(parts));
  ensure(!parts.empty(), "a trainer without samples for validation");
  TimestepSums sums(schedule_.size());
  for (const auto& [number, end, is_extra] : micro_batches_of(std::ssize(parts), 1, most)) {  // one part a turn
    if (gives_up()) return std::nullopt;
    const auto& part = parts[static_cast<std::size_t>(number)];
    const auto timesteps = timesteps_of(part);
    const auto its_errors = errors(part, timesteps);
    if (!is_extra) sums.add(timesteps, weights_of(timesteps), its_errors);
    ++phase::moves;
  }
  return sums.over(trainers, options_.samples, options_.objective.snr_gamma.has_value());
}

// The same in every validation.
std::vector<std::int64_t> Validation::timesteps_of(const Part& part) const {
  return uniform_timesteps(part.keys(), schedule_.size());
}

// Known on the host, so the errors without them come with no second pass.
std::vector<float> Validation::weights_of(std::span<const std::int64_t> timesteps) const {
  std::vector<float> weights;
  for (const auto timestep : timesteps)
    weights.push_back(static_cast<float>(loss_weight(schedule_, options_.objective, static_cast<int>(timestep))));
  return weights;
}

torch::Tensor Validation::errors(const Part& part, std::span<const std::int64_t> timesteps) {
  const auto& [samples, begin, end] = part;
  auto text = samples->text.slice(0, begin, end);
  text = options_.text_encoder ? options_.text_encoder->encode(text) : upload(text, options_.device);
  const auto moments = upload(samples->moments.slice(0, begin, end), options_.device);
  auto unweighted = options_.objective;
  unweighted.snr_gamma.reset();
  const auto input = make_step_input(moments, text, /*null_text=*/{}, part.keys(), timesteps, options_.latent_scale,
                                     schedule_, unweighted, options_.device);
  return diffusion_loss(predict(unet_, input, options_.dtype), input).to(torch::kCPU);
}

}  // namespace millrace
