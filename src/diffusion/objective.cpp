#include "millrace/diffusion/objective.h"

#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/kernels/ops.h"

namespace millrace {
namespace {

// int32 (B, 5), pinned, for kernels::unit_normals.
torch::Tensor words_of(std::span<const RngKey> keys, Purpose purpose) {
  const auto words = torch::empty({std::ssize(keys), std::ssize(PhiloxWords())},
                                  torch::TensorOptions(torch::kInt32).pinned_memory(true));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto of_key = philox_words(keys[i], purpose);
    std::ranges::copy(of_key, words.data_ptr<std::int32_t>() + i * of_key.size());
  }
  return words;
}

// Unit normals, one row per sample, made where they are needed: the same bits on the CPU and on a GPU.
torch::Tensor normals(std::span<const RngKey> keys, Purpose purpose, std::vector<std::int64_t> shape,
                      torch::Device device) {
  shape.insert(shape.begin(), static_cast<std::int64_t>(keys.size()));
  if (device.is_cuda()) return kernels::unit_normals(words_of(keys, purpose).to(device, /*non_blocking=*/true), shape);
  const torch::Tensor filled = torch::empty(shape);
  const std::size_t per_sample = filled.numel() / keys.size();
  for (std::size_t i = 0; i < keys.size(); ++i)
    fill_normal(keys[i], purpose, {filled.data_ptr<float>() + i * per_sample, per_sample});
  return filled;
}

// One number per value of `of`, computed on the host.
template <class Of, class Function>
torch::Tensor numbers_of(std::span<const Of> of, torch::ScalarType type, torch::Device device, Function function) {
  const auto size = static_cast<std::int64_t>(of.size());
  const torch::Tensor host = torch::empty({size}, torch::TensorOptions(type).pinned_memory(device.is_cuda()));
  std::ranges::transform(of, host.data_ptr<std::remove_cvref_t<decltype(function(of[0]))>>(), function);
  return host.to(device, /*non_blocking=*/true);
}

torch::Tensor drop_captions(const torch::Tensor& text, const torch::Tensor& null_text, std::span<const RngKey> keys,
                            double share, torch::Device device) {
  const torch::Tensor dropped = numbers_of(
      keys, torch::kBool, device, [&](const RngKey& key) { return uniform(key, Purpose::caption_drop) < share; });
  return torch::where(dropped.view({-1, 1, 1}), null_text.to(device, text.scalar_type()), text.to(device));
}

}  // namespace

void ObjectiveConfig::describe(config::Section& section) {
  section.key("prediction", prediction, {{"epsilon", Prediction::epsilon}, {"v_prediction", Prediction::v_prediction}},
              "what the U-Net predicts: the noise or the velocity; wins over the pipeline's prediction_type");
  section.key("timesteps", timesteps, {{"uniform", Timesteps::uniform}, {"stratified", Timesteps::stratified}},
              "each sample's alone, or one in each of batch.global equal parts of the range");
  section.key("caption_dropout", caption_dropout, "share of captions replaced by the empty one, for guidance")
      .at_least(0)
      .at_most(1);
  section.key("snr_gamma", snr_gamma, "min-SNR loss weights with this gamma, usually 5; null = all weights 1").above(0);
  section.key("noise_offset", noise_offset, "noise that is the same over a channel is added with this factor")
      .at_least(0);
  section.key("zero_terminal_snr", zero_terminal_snr,
              "rescale the betas so that the last timestep is pure noise; needs v_prediction");
  section.key("input_perturbation", input_perturbation, "extra noise in the U-Net's input only, with this factor")
      .at_least(0);
}

SchedulerConfig trained_scheduler(const SchedulerConfig& folder, const ObjectiveConfig& objective) {
  // The rescaling key may stand in a file whose class does not know it: read it as a training scheduler would.
  const bool rescaled = objective.zero_terminal_snr || folder.with_class(SchedulerClass::ddpm).rescale_betas_zero_snr;
  if (rescaled && objective.prediction == Prediction::epsilon)
    throw Error(Exit::usage, "objective.prediction = epsilon is undefined at zero terminal SNR",
                "set objective.prediction=v_prediction, or objective.zero_terminal_snr=false with a folder without "
                "rescale_betas_zero_snr");
  if (objective.prediction != folder.prediction)
    log::warning("training for {} although the pipeline's scheduler says {}: objective.prediction wins",
                 to_string(objective.prediction), to_string(folder.prediction));
  if (rescaled && objective.snr_gamma)
    log::warning("min-SNR weights are 0 at the last timestep of a zero-terminal-SNR schedule: it is never trained");

  nlohmann::ordered_json keys = {{"prediction_type", to_string(objective.prediction)}};
  if (rescaled) {
    keys["rescale_betas_zero_snr"] = true;
    keys["timestep_spacing"] = "trailing";
  }
  const bool lacks_key = rescaled && folder.scheduler_class == SchedulerClass::pndm;
  return (lacks_key ? folder.with_class(SchedulerClass::ddim) : folder).with_keys(keys);
}

Posterior::Posterior(const torch::Tensor& moments) {
  const std::vector<torch::Tensor> halves = moments.chunk(2, 1);
  mean = halves[0];
  log_variance = halves[1].clamp(-30, 20);
}

torch::Tensor Posterior::sample(std::span<const RngKey> keys) const {
  ensure(mean.size(0) == std::ssize(keys), "one key per sample");
  return mean +
         (0.5 * log_variance).exp() * normals(keys, Purpose::posterior, mean.sizes().slice(1).vec(), mean.device());
}

double loss_weight(const NoiseSchedule& schedule, const ObjectiveConfig& objective, int timestep) {
  if (!objective.snr_gamma) return 1;
  const double snr = schedule.snr(timestep);
  return std::min(snr, *objective.snr_gamma) / (objective.prediction == Prediction::epsilon ? snr : snr + 1);
}

std::vector<std::int64_t> uniform_timesteps(std::span<const RngKey> keys, std::int64_t steps) {
  std::vector<std::int64_t> timesteps(keys.size());
  std::ranges::transform(keys, timesteps.begin(), [&](const RngKey& key) {
    return static_cast<std::int64_t>(uniform_int(key, Purpose::timestep, static_cast<std::uint64_t>(steps)));
  });
  return timesteps;
}

std::vector<std::int64_t> stratified_timesteps(std::span<const RngKey> keys, std::uint64_t seed,
                                               const BatchPlace& place, std::int64_t steps) {
  ensure(place.first >= 0 && place.first + std::ssize(keys) <= place.global_batch, "samples lie inside their batch");
  std::vector<std::uint32_t> parts(static_cast<std::size_t>(place.global_batch));
  std::iota(parts.begin(), parts.end(), 0);
  keyed_shuffle({seed, static_cast<std::uint64_t>(place.step)}, Purpose::timestep_part, parts);

  // Part p of G holds p/G <= x < (p+1)/G of the range: in units of 2^-32/G, so that nothing is rounded.
  using Wide = unsigned __int128;
  constexpr std::uint64_t unit = std::uint64_t{1} << 32;
  std::vector<std::int64_t> timesteps(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Wide x = Wide{parts[place.first + i]} * unit + uniform_int(keys[i], Purpose::timestep, unit);
    timesteps[i] = static_cast<std::int64_t>(x * static_cast<Wide>(steps) / (Wide{unit} * place.global_batch));
  }
  return timesteps;
}

StepInput make_step_input(const torch::Tensor& moments, const torch::Tensor& text, const torch::Tensor& null_text,
                          std::span<const RngKey> keys, std::span<const std::int64_t> timesteps, double scaling_factor,
                          double shift_factor, const NoiseSchedule& schedule, const ObjectiveConfig& objective,
                          torch::Device device) {
  ensure(moments.size(0) == std::ssize(keys) && text.size(0) == std::ssize(keys), "one key per sample");
  ensure(timesteps.size() == keys.size(), "one timestep per sample");
  const torch::NoGradGuard no_grad;
  const auto number = [&](auto function) {  // (B, 1, 1, 1)
    return numbers_of(timesteps, torch::kFloat32, device,
                      [&](std::int64_t t) { return static_cast<float>(function(t)); })
        .view({-1, 1, 1, 1});
  };
  const torch::Tensor signal = number([&](auto t) { return std::sqrt(schedule.alphas_cumprod()[t]); });
  const torch::Tensor spread = number([&](auto t) { return std::sqrt(1 - schedule.alphas_cumprod()[t]); });

  StepInput input;
  input.timesteps = numbers_of(timesteps, torch::kInt64, device, std::identity());
  input.weight = number([&](auto t) { return loss_weight(schedule, objective, static_cast<int>(t)); }).view({-1});
  input.text = drop_captions(text, null_text, keys, objective.caption_dropout, device);
  input.latents = (Posterior(moments.to(device, torch::kFloat32)).sample(keys) - shift_factor) * scaling_factor;

  const std::vector<std::int64_t> shape = input.latents.sizes().slice(1).vec();
  input.noise = normals(keys, Purpose::noise, shape, device);
  if (objective.noise_offset > 0)
    input.noise += objective.noise_offset * normals(keys, Purpose::noise_offset, {shape[0], 1, 1}, device);
  torch::Tensor added = input.noise;
  if (objective.input_perturbation > 0)
    added = added + objective.input_perturbation * normals(keys, Purpose::input_perturbation, shape, device);
  input.noisy = signal * input.latents + spread * added;
  input.target =
      objective.prediction == Prediction::epsilon ? input.noise : signal * input.noise - spread * input.latents;
  return input;
}

torch::Tensor diffusion_loss(const torch::Tensor& prediction, const StepInput& input) {
  return input.weight * (prediction.to(torch::kFloat32) - input.target).square().mean({1, 2, 3});
}

}  // namespace millrace
