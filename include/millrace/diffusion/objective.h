#pragma once
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/config/config.h"
#include "millrace/core/philox.h"
#include "millrace/diffusion/latent_scale.h"
#include "millrace/diffusion/noise_schedule.h"

// What the U-Net is trained to predict, from encoded samples.
namespace millrace {

struct ObjectiveConfig {
  enum class Timesteps { uniform, stratified };
  Prediction prediction = Prediction::epsilon;
  Timesteps timesteps = Timesteps::uniform;
  double caption_dropout = 0.1;
  std::optional<double> snr_gamma = std::nullopt;
  double noise_offset = 0;
  bool zero_terminal_snr = false;
  double input_perturbation = 0;

  void describe(config::Section& section);
};

// The scheduler file that goes with weights trained by this objective: its prediction_type and, at zero terminal SNR,
// rescale_betas_zero_snr and trailing timesteps (as DDIM where the folder's class lacks the key, as PNDM does).
// Error(usage) for epsilon at zero terminal SNR, where the input of the last timestep is nothing but the noise it asks
// for.
SchedulerConfig trained_scheduler(const SchedulerConfig& folder, const ObjectiveConfig& objective);
// What somebody who trains by this objective on that folder should know.
std::vector<std::string> list_objective_problems(const SchedulerConfig& folder, const ObjectiveConfig& objective);

// Unit normals on the device, `shape` of each row and keyed by keys[row]: the same bits on the CPU and on a GPU.
torch::Tensor unit_normals(std::span<const RngKey> keys, Purpose purpose, const std::vector<std::int64_t>& shape,
                           torch::Device device);

// The normal distribution of latents that the VAE gives for each image.
struct Posterior {
  torch::Tensor mean, log_variance;  // (B, C, h, w)

  // `moments` (B, 2C, h, w), fp32 = means and log-variances; the latter are clamped to [-30, 20].
  explicit Posterior(const torch::Tensor& moments);
  // (B, C, h, w): mean + deviation x unit normals, those of row i keyed by keys[i]. Gradients pass through.
  torch::Tensor sample(std::span<const RngKey> keys) const;
  // The same with these normals, (B, C, h, w).
  torch::Tensor sample(const torch::Tensor& unit_normals) const;
};

// One micro-batch as the U-Net sees it. All on the training device; fp32, `text` in the type it was stored in.
struct StepInput {
  torch::Tensor latents;    // (B, 4, h, w) sampled posterior, scaled
  torch::Tensor text;       // (B, 77, C) with dropped captions replaced
  torch::Tensor noise;      // (B, 4, h, w) with offset
  torch::Tensor noisy;      // (B, 4, h, w) input of the U-Net
  torch::Tensor timesteps;  // i64 (B)
  torch::Tensor target;     // (B, 4, h, w) what it should answer
  torch::Tensor weight;     // (B) weight of each sample's mean squared error
};

// Timesteps of samples, each 0 <= t < steps: uniform, from a sample's key alone.
std::vector<std::int64_t> uniform_timesteps(std::span<const RngKey> keys, std::int64_t steps);

// Where samples stand among all of an optimizer step.
struct BatchPlace {
  std::int64_t step = 0;          // 1, 2, ...
  std::int64_t global_batch = 1;  // samples
  std::int64_t first = 0;         // of the samples in question: its place in the global batch
};
// One draw in each of `global_batch` equal parts of the timesteps, so that every step sees the whole range: which part
// a place draws from is a permutation keyed by seed and step, where in the part comes from the sample's key.
// Consecutive samples of the batch -> 0 <= t < steps.
std::vector<std::int64_t> stratified_timesteps(std::span<const RngKey> keys, std::uint64_t seed,
                                               const BatchPlace& place, std::int64_t steps);

// Draws everything else that is random about B samples from their keys alone: results depend neither on the batch's
// size nor on who computes it. `timesteps` (B). `moments` (B, 8, h, w) = mean and log-variance of the posterior, `text`
// (B, 77, C), `null_text` (77, C) = the text embeddings of the empty caption, undefined where captions are never
// dropped; f16 or f32, on any device. The numbers are made on the host and reach a GPU by one asynchronous copy.
StepInput make_step_input(const torch::Tensor& moments, const torch::Tensor& text, const torch::Tensor& null_text,
                          std::span<const RngKey> keys, std::span<const std::int64_t> timesteps, LatentScale scale,
                          const NoiseSchedule& schedule, const ObjectiveConfig& objective, torch::Device device);

// Weight of a sample's squared error at this timestep: 1, or min-SNR (Hang et al., "Efficient Diffusion Training via
// Min-SNR Weighting Strategy").
double loss_weight(const NoiseSchedule& schedule, const ObjectiveConfig& objective, int timestep);

// weight x mean squared error of each sample, fp32 (B); the loss is the mean over the global batch.
torch::Tensor diffusion_loss(const torch::Tensor& prediction, const StepInput& input);

}  // namespace millrace
