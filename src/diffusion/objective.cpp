#include "millrace/diffusion/objective.h"

#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/kernels/ops.h"

namespace millrace {
namespace {

constexpr std::int64_t words_per_key = std::tuple_size_v<PhiloxWords>;

// What kernels::unit_normals takes, of each key.
void write_words(std::span<const RngKey> keys, Purpose purpose, std::int32_t* words) {
  for (const auto& key : keys) words = std::ranges::copy(philox_words(key, purpose), words).out;
}

torch::Tensor pinned_words(std::span<const RngKey> keys, Purpose purpose) {
  const auto words =
      torch::empty({std::ssize(keys), words_per_key}, torch::TensorOptions(torch::kInt32).pinned_memory(true));
  write_words(keys, purpose, words.mutable_data_ptr<std::int32_t>());
  return words;
}

// What kernels::unit_normals makes on a GPU, to the bit.
torch::Tensor normals_on_cpu(std::span<const RngKey> keys, Purpose purpose, at::IntArrayRef shape) {
  const torch::Tensor filled = torch::empty(shape);
  const std::size_t per_sample = filled.numel() / keys.size();
  for (std::size_t i = 0; i < keys.size(); ++i)
    fill_normal(keys[i], purpose, {filled.data_ptr<float>() + i * per_sample, per_sample});
  return filled;
}

std::vector<std::int64_t> rows_of(std::int64_t rows, std::vector<std::int64_t> shape) {
  shape.insert(shape.begin(), rows);
  return shape;
}

// What the host knows about each sample of a micro-batch, as views into one piece of memory: it reaches a GPU by one
// copy that waits for nothing.
class SampleNumbers {
 public:
  SampleNumbers(std::span<const RngKey> keys, std::span<const std::int64_t> timesteps, const NoiseSchedule& schedule,
                const ObjectiveConfig& objective, torch::Device device)
      : keys_(keys), purposes_(purposes_of(objective, device)) {
    const auto bytes = torch::empty({std::ssize(keys) * bytes_per_sample()},
                                    torch::TensorOptions(torch::kUInt8).pinned_memory(device.is_cuda()));
    look_at(bytes);
    fill(timesteps, schedule, objective);
    if (!device.is_cpu()) look_at(bytes.to(device, /*non_blocking=*/true));
  }

  torch::Tensor timesteps;               // i64 (B)
  torch::Tensor signal, spread, weight;  // (B)
  torch::Tensor is_dropped;              // bool (B): its caption is

  torch::Tensor normals(Purpose purpose, const std::vector<std::int64_t>& shape) const {
    const auto sizes = rows_of(std::ssize(keys_), shape);
    if (purposes_.empty()) return normals_on_cpu(keys_, purpose, sizes);
    return kernels::unit_normals(words_[std::ranges::find(purposes_, purpose) - purposes_.begin()], sizes);
  }

 private:
  // Whose normals a GPU makes.
  static std::vector<Purpose> purposes_of(const ObjectiveConfig& objective, torch::Device device) {
    if (device.is_cpu()) return {};
    std::vector<Purpose> purposes = {Purpose::posterior, Purpose::noise};
    if (objective.noise_offset > 0) purposes.push_back(Purpose::noise_offset);
    if (objective.input_perturbation > 0) purposes.push_back(Purpose::input_perturbation);
    return purposes;
  }

  std::int64_t bytes_per_sample() const {
    const auto words = std::ssize(purposes_) * words_per_key;
    return sizeof(std::int64_t) + 3 * sizeof(float) + words * sizeof(std::int32_t) + sizeof(bool);
  }

  void look_at(const torch::Tensor& bytes) {
    const std::int64_t samples = std::ssize(keys_), purposes = std::ssize(purposes_);
    std::int64_t used = 0;
    const auto take = [&](torch::ScalarType type, std::int64_t count) {
      const auto size = count * static_cast<std::int64_t>(c10::elementSize(type));
      return bytes.narrow(0, std::exchange(used, used + size), size).view(type);
    };
    timesteps = take(torch::kInt64, samples);  // the largest numbers first, so that all are aligned
    signal = take(torch::kFloat32, samples);
    spread = take(torch::kFloat32, samples);
    weight = take(torch::kFloat32, samples);
    words_ = take(torch::kInt32, purposes * samples * words_per_key).view({purposes, samples, words_per_key});
    is_dropped = take(torch::kBool, samples);
  }

  void fill(std::span<const std::int64_t> drawn, const NoiseSchedule& schedule, const ObjectiveConfig& objective) {
    const auto number = [&](torch::Tensor& of, auto function) {
      std::ranges::transform(drawn, of.mutable_data_ptr<float>(),
                             [&](std::int64_t t) { return static_cast<float>(function(t)); });
    };
    std::ranges::copy(drawn, timesteps.mutable_data_ptr<std::int64_t>());
    number(signal, [&](auto t) { return std::sqrt(schedule.alphas_cumprod()[t]); });
    number(spread, [&](auto t) { return std::sqrt(1 - schedule.alphas_cumprod()[t]); });
    number(weight, [&](auto t) { return loss_weight(schedule, objective, static_cast<int>(t)); });
    for (std::size_t i = 0; i < purposes_.size(); ++i)
      write_words(keys_, purposes_[i], words_[static_cast<std::int64_t>(i)].mutable_data_ptr<std::int32_t>());
    std::ranges::transform(keys_, is_dropped.mutable_data_ptr<bool>(), [&](const RngKey& key) {
      return uniform(key, Purpose::caption_drop) < objective.caption_dropout;
    });
  }

  const std::span<const RngKey> keys_;
  const std::vector<Purpose> purposes_;
  torch::Tensor words_;  // i32 (purposes, B, 5)
};

// (B, 1, 1, 1)
torch::Tensor over_image(const torch::Tensor& numbers) {
  return numbers.view({-1, 1, 1, 1});
}

// What the U-Net should answer.
torch::Tensor target_of(Prediction prediction, const torch::Tensor& latents, const torch::Tensor& noise,
                        const torch::Tensor& signal, const torch::Tensor& spread) {
  switch (prediction) {
    case Prediction::epsilon:
      return noise;
    case Prediction::v_prediction:
      return signal * noise - spread * latents;
  }
  throw bug("a prediction without a target");
}

}  // namespace

void ObjectiveConfig::describe(config::Section& section) {
  section.key("prediction", prediction,
              {{to_string(Prediction::epsilon), Prediction::epsilon},
               {to_string(Prediction::v_prediction), Prediction::v_prediction}},
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

// The rescaling key may stand in a file whose class does not know it: reads it as a training scheduler would.
static bool is_rescaled(const SchedulerConfig& folder, const ObjectiveConfig& objective) {
  return objective.zero_terminal_snr || folder.with_class(SchedulerClass::ddpm).rescale_betas_zero_snr;
}

// diffusers writes every key that a class knows.
static bool knows_rescaling(const SchedulerConfig& folder) {
  if (folder.scheduler_class == SchedulerClass::other) return folder.given.contains("rescale_betas_zero_snr");
  return folder.scheduler_class != SchedulerClass::pndm;
}

SchedulerConfig trained_scheduler(const SchedulerConfig& folder, const ObjectiveConfig& objective) {
  const bool rescaled = is_rescaled(folder, objective);
  if (rescaled && objective.prediction == Prediction::epsilon)
    throw Error(Exit::usage, "objective.prediction = epsilon is undefined at zero terminal SNR",
                "set objective.prediction=v_prediction, or objective.zero_terminal_snr=false with a folder without "
                "rescale_betas_zero_snr");
  nlohmann::ordered_json keys = {{"prediction_type", to_string(objective.prediction)}};
  if (rescaled) {
    keys["rescale_betas_zero_snr"] = true;
    keys["timestep_spacing"] = "trailing";
  }
  const bool lacks_key = rescaled && !knows_rescaling(folder);
  return (lacks_key ? folder.with_class(SchedulerClass::ddim) : folder).with_keys(keys);
}

std::vector<std::string> list_objective_problems(const SchedulerConfig& folder, const ObjectiveConfig& objective) {
  std::vector<std::string> problems;
  if (objective.prediction != folder.prediction)
    problems.push_back(
        fmt::format("training for {} although the pipeline's scheduler says {}: objective.prediction wins",
                    to_string(objective.prediction), to_string(folder.prediction)));
  if (is_rescaled(folder, objective) && objective.snr_gamma)
    problems.push_back(
        "min-SNR weights are 0 at the last timestep of a zero-terminal-SNR schedule: it is never trained");
  return problems;
}

torch::Tensor unit_normals(std::span<const RngKey> keys, Purpose purpose, const std::vector<std::int64_t>& shape,
                           torch::Device device) {
  const auto sizes = rows_of(std::ssize(keys), shape);
  if (device.is_cpu()) return normals_on_cpu(keys, purpose, sizes);
  return kernels::unit_normals(pinned_words(keys, purpose).to(device, /*non_blocking=*/true), sizes);
}

Posterior::Posterior(const torch::Tensor& moments) {
  const std::vector<torch::Tensor> halves = moments.chunk(2, 1);
  mean = halves[0];
  log_variance = halves[1].clamp(-30, 20);
}

torch::Tensor Posterior::sample(std::span<const RngKey> keys) const {
  ensure(mean.size(0) == std::ssize(keys), "one key per sample");
  return sample(unit_normals(keys, Purpose::posterior, mean.sizes().slice(1).vec(), mean.device()));
}

torch::Tensor Posterior::sample(const torch::Tensor& unit_normals) const {
  return mean + (0.5 * log_variance).exp() * unit_normals;
}

double loss_weight(const NoiseSchedule& schedule, const ObjectiveConfig& objective, int timestep) {
  if (!objective.snr_gamma) return 1;
  const double snr = schedule.snr(timestep), least = std::min(snr, *objective.snr_gamma);
  switch (objective.prediction) {
    case Prediction::epsilon:
      return least / snr;
    case Prediction::v_prediction:
      return least / (snr + 1);
  }
  throw bug("a prediction without a weight of its loss");
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
                          std::span<const RngKey> keys, std::span<const std::int64_t> timesteps, LatentScale scale,
                          const NoiseSchedule& schedule, const ObjectiveConfig& objective, torch::Device device) {
  ensure(moments.size(0) == std::ssize(keys) && text.size(0) == std::ssize(keys), "one key per sample");
  ensure(timesteps.size() == keys.size(), "one timestep per sample");
  ensure(null_text.defined() || objective.caption_dropout == 0, "what dropped captions are replaced by is known");
  const torch::NoGradGuard no_grad;
  const SampleNumbers numbers(keys, timesteps, schedule, objective, device);
  const auto signal = over_image(numbers.signal), spread = over_image(numbers.spread);

  StepInput input;
  input.timesteps = numbers.timesteps;
  input.weight = numbers.weight;
  input.text = text.to(device);
  if (null_text.defined())
    input.text =
        torch::where(numbers.is_dropped.view({-1, 1, 1}), null_text.to(device, text.scalar_type()), input.text);
  const Posterior posterior(moments.to(device, torch::kFloat32));
  const std::vector<std::int64_t> shape = posterior.mean.sizes().slice(1).vec();
  input.latents = (posterior.sample(numbers.normals(Purpose::posterior, shape)) - scale.shift) * scale.factor;

  input.noise = numbers.normals(Purpose::noise, shape);
  if (objective.noise_offset > 0)
    input.noise += objective.noise_offset * numbers.normals(Purpose::noise_offset, {shape[0], 1, 1});
  torch::Tensor added = input.noise;
  if (objective.input_perturbation > 0)
    added = added + objective.input_perturbation * numbers.normals(Purpose::input_perturbation, shape);
  input.noisy = signal * input.latents + spread * added;
  input.target = target_of(objective.prediction, input.latents, input.noise, signal, spread);
  return input;
}

torch::Tensor diffusion_loss(const torch::Tensor& prediction, const StepInput& input) {
  return input.weight * (prediction.to(torch::kFloat32) - input.target).square().mean({1, 2, 3});
}

}  // namespace millrace
