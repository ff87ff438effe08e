#include "millrace/train/validation.h"

#include <algorithm>

#include "millrace/core/error.h"

namespace millrace {

Validation::Validation(UNet2DConditionModel unet, NoiseSchedule schedule, std::vector<EncodedBatch> batches,
                       Options options)
    : unet_(std::move(unet)),
      schedule_(std::move(schedule)),
      batches_(std::move(batches)),
      options_(std::move(options)) {
  options_.objective.caption_dropout = 0;
  options_.objective.input_perturbation = 0;
}

double Validation::loss(const Group& trainers) {
  const torch::NoGradGuard no_grad;
  std::vector<Turn> turns;
  for (const auto& batch : batches_) {
    const auto count = static_cast<std::int64_t>(batch.refs.size());
    for (std::int64_t begin = 0; begin < count; begin += options_.micro_batch)
      turns.push_back({&batch, begin, std::min(begin + options_.micro_batch, count)});
  }
  auto most = static_cast<std::int64_t>(turns.size());
  trainers.all_reduce_max(std::span(&most, 1));
  ensure(!turns.empty(), "a trainer without samples for validation");
  double sum = 0;
  for (const auto& turn : turns) sum += sum_of_losses(turn);
  for (auto turn = std::ssize(turns); turn < most; ++turn) sum_of_losses(turns.back());
  trainers.all_reduce_sum(std::span(&sum, 1));
  return sum / static_cast<double>(options_.samples);
}

double Validation::sum_of_losses(const Turn& turn) {
  const auto& [samples, begin, end] = turn;
  const EncodedBatch& batch = *samples;
  const auto keys = rng_keys(validation_seed, std::span(batch.refs).subspan(begin, end - begin));
  const auto text = batch.text.slice(0, begin, end);
  const auto input =
      make_step_input(batch.moments.slice(0, begin, end), text, /*null_text, never used=*/text[0], keys,
                      options_.scaling_factor, options_.shift_factor, schedule_, options_.objective, options_.device);
  const auto prediction =
      unet_->forward(input.noisy.to(options_.dtype), input.timesteps, input.text.to(options_.dtype));
  return diffusion_loss(prediction, input).sum(torch::kFloat64).item<double>();
}

}  // namespace millrace
