#include "millrace/diffusion/objective.h"

#include <cmath>

#include "millrace/core/error.h"
#include "millrace/core/log.h"

namespace millrace {
namespace {

// Unit normals, one row per sample: filled on the host, copied to the device without waiting.
torch::Tensor normals(std::span<const RngKey> keys, Purpose purpose, std::vector<std::int64_t> shape,
                      torch::Device device) {
  shape.insert(shape.begin(), static_cast<std::int64_t>(keys.size()));
  const torch::Tensor host = torch::empty(shape, torch::TensorOptions(torch::kFloat32).pinned_memory(device.is_cuda()));
  const std::size_t per_sample = host.numel() / keys.size();
  for (std::size_t i = 0; i < keys.size(); ++i)
    fill_normal(keys[i], purpose, {host.data_ptr<float>() + i * per_sample, per_sample});
  return host.to(device, /*non_blocking=*/true);
}

// One number per sample, computed on the host.
template <class Function>
torch::Tensor per_sample(std::span<const RngKey> keys, torch::ScalarType type, torch::Device device,
                         Function function) {
  const auto size = static_cast<std::int64_t>(keys.size());
  const torch::Tensor host = torch::empty({size}, torch::TensorOptions(type).pinned_memory(device.is_cuda()));
  using Number = decltype(function(keys[0]));
  for (std::size_t i = 0; i < keys.size(); ++i) host.data_ptr<Number>()[i] = function(keys[i]);
  return host.to(device, /*non_blocking=*/true);
}

torch::Tensor drop_captions(const torch::Tensor& text, const torch::Tensor& null_text, std::span<const RngKey> keys,
                            double share, torch::Device device) {
  const torch::Tensor dropped = per_sample(
      keys, torch::kBool, device, [&](const RngKey& key) { return uniform(key, Purpose::caption_drop) < share; });
  return torch::where(dropped.view({-1, 1, 1}), null_text.to(device, text.scalar_type()), text.to(device));
}

}  // namespace

void ObjectiveConfig::describe(config::Section& section) {
  section.key("prediction", prediction, {{"epsilon", Prediction::epsilon}, {"v_prediction", Prediction::v_prediction}},
              "what the U-Net predicts: the noise or the velocity; wins over the pipeline's prediction_type");
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

StepInput make_step_input(const torch::Tensor& moments, const torch::Tensor& text, const torch::Tensor& null_text,
                          std::span<const RngKey> keys, double scaling_factor, double shift_factor,
                          const NoiseSchedule& schedule, const ObjectiveConfig& objective, torch::Device device) {
  ensure(moments.size(0) == std::ssize(keys) && text.size(0) == std::ssize(keys), "one key per sample");
  const torch::NoGradGuard no_grad;
  const auto timestep = [&](const RngKey& key) {
    return static_cast<std::int64_t>(uniform_int(key, Purpose::timestep, schedule.size()));
  };
  const auto number = [&](auto function) {  // (B, 1, 1, 1)
    return per_sample(keys, torch::kFloat32, device,
                      [&](const RngKey& key) { return static_cast<float>(function(timestep(key))); })
        .view({-1, 1, 1, 1});
  };
  const torch::Tensor signal = number([&](auto t) { return std::sqrt(schedule.alphas_cumprod()[t]); });
  const torch::Tensor spread = number([&](auto t) { return std::sqrt(1 - schedule.alphas_cumprod()[t]); });

  StepInput input;
  input.timesteps = per_sample(keys, torch::kInt64, device, timestep);
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
