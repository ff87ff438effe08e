#include "millrace/train/autoencoder_task.h"

#include <fmt/format.h>
#include <torch/utils.h>

#include <cmath>
#include <span>

#include "micro_batches.h"
#include "millrace/core/error.h"
#include "millrace/core/text.h"
#include "millrace/diffusion/objective.h"
#include "millrace/encode/encoder.h"
#include "millrace/nn/device.h"

namespace millrace {

void AutoencoderConfig::describe(config::Section& section) {
  section.key("l1", l1, "weight of the mean absolute error").at_least(0);
  section.key("mse", mse, "weight of the mean squared error").at_least(0);
  section
      .key("kl", kl,
           "weight of the posterior's KL divergence from the unit normal, mean per element; of programs that sum over "
           "an image, theirs x latent elements / image elements")
      .at_least(0);
  section.key("scaling_factor", scaling_factor,
              "what the exported VAE's latents are multiplied by: measure = 1 / their standard deviation, keep = that "
              "of model.pipeline, or a number; auto = keep with model.init=pretrained, else measure");
}

// Nothing where the text is no number above 0, as auto and measure are none.
static std::optional<double> try_scaling_factor(const std::string& text) {
  const auto number = parse_number<double>(text);
  return number && std::isfinite(*number) && *number > 0 ? number : std::nullopt;
}

void AutoencoderConfig::check(config::Report& report) const {
  if (scaling_factor == "auto" || scaling_factor == "measure" || scaling_factor == "keep") return;
  if (!try_scaling_factor(scaling_factor))
    report.problem("autoencoder.scaling_factor",
                   fmt::format("expected auto, measure, keep or a number above 0, found {}", scaling_factor));
}

bool AutoencoderConfig::keeps_scaling_factor(bool is_pretrained) const {
  return scaling_factor == "keep" || (scaling_factor == "auto" && is_pretrained);
}

std::optional<double> AutoencoderConfig::chosen_scaling_factor(bool is_pretrained, double folder) const {
  return keeps_scaling_factor(is_pretrained) ? folder : try_scaling_factor(scaling_factor);
}

AutoencoderTask::AutoencoderTask(AutoencoderKL vae, StripeStream& stream, Options options)
    : vae_(std::move(vae)),
      stream_(stream),
      options_(std::move(options)),
      samples_(stream, options_.stripes, TurnSize{options_.samples_per_stripe, 1}, 2 * local_batch_size()) {}

bool AutoencoderTask::next_batch(double) {
  std::vector<TransformedSample> batch;
  std::vector<SampleRef> refs;
  for (int i = 0; i < local_batch_size(); ++i) {
    auto sample = samples_.next();
    ensure(sample.has_value(), "training reads stripes without end");
    refs.push_back(sample->ref);
    batch.push_back(std::move(*sample));
  }
  // Only whole batches: where reading fails, the last save measures on the one before.
  local_batch_ = std::move(batch);
  refs_ = std::move(refs);
  return true;
}

// (B, 3, H, W) in [-1, 1] and unit normals (B, latent_channels, h, w).
std::vector<torch::Tensor> AutoencoderTask::inputs(std::int64_t begin, std::int64_t end) {
  const std::span samples(local_batch_.data() + begin, static_cast<std::size_t>(end - begin));
  const auto image = normalize_images(upload(stack_images(samples), options_.device));
  const auto& config = vae_->config();
  const auto keys = rng_keys(options_.seed, std::span(refs_).subspan(begin, end - begin));
  const std::vector<std::int64_t> latent = {config.latent_channels, config.latent_side(image.size(2)),
                                            config.latent_side(image.size(3))};
  return {image, unit_normals(keys, Purpose::posterior, latent, options_.device)};
}

torch::Tensor AutoencoderTask::loss(const std::vector<torch::Tensor>& inputs) {
  const auto& image = inputs[0];
  const auto moments = vae_->encode(image.to(options_.dtype)).to(torch::kFloat32);  // (B, 8, h, w)
  const Posterior posterior(moments);
  const auto& [mean, logvar] = posterior;
  const auto latent = posterior.sample(inputs[1]);
  const auto reconstruction = vae_->decode(latent.to(options_.dtype)).to(torch::kFloat32);
  const auto error = reconstruction - image;
  auto per_sample = [](const torch::Tensor& t) { return t.flatten(1).mean(1); };
  const auto kl = 0.5 * per_sample(mean.square() + logvar.exp() - 1 - logvar);
  record_.keep("image", image);
  record_.keep("moments", moments);
  record_.keep("latents", latent);
  record_.keep("reconstruction", reconstruction);
  const auto l1 = per_sample(error.abs()), mse = per_sample(error.square());
  last_parts_ = torch::stack({l1.sum(), mse.sum(), kl.sum()}).detach() / options_.global_batch;
  const auto& w = options_.loss;
  return (w.l1 * l1 + w.mse * mse + w.kl * kl).sum() / options_.global_batch;
}

void AutoencoderTask::count_loss_parts() {
  parts_ = parts_.defined() ? parts_ + last_parts_ : last_parts_;
}

LossParts AutoencoderTask::take_loss_parts() {
  const auto sums = parts_.to(torch::kCPU, torch::kFloat64);
  parts_.reset();
  const auto* const values = sums.const_data_ptr<double>();
  return {{"l1", values[0]}, {"mse", values[1]}, {"kl", values[2]}};
}

LedgerDelta AutoencoderTask::take_ledger_delta() {
  LedgerDelta delta;
  for (auto stripe : options_.stripes) delta.append(stream_.take_ledger_delta(stripe));
  return delta;
}

double AutoencoderTask::latent_deviation(const Group& trainers) {
  const auto samples = std::ssize(local_batch_);
  const auto turns = trainers.largest(count_micro_batches(samples, options_.micro_batch));
  double sums[] = {0, 0, 0};
  for (const auto& [begin, end, is_extra] : micro_batches_of(samples, options_.micro_batch, turns)) {
    const auto latents = sampled_latents(begin, end);
    if (is_extra) continue;
    sums[0] += static_cast<double>(latents.numel());
    sums[1] += latents.sum().item<double>();
    sums[2] += latents.square().sum().item<double>();
  }
  trainers.all_reduce_sum(std::span<double>(sums));
  const auto [elements, sum, squares] = sums;
  return std::sqrt((squares - sum * sum / elements) / (elements - 1));
}

torch::Tensor AutoencoderTask::sampled_latents(std::int64_t begin, std::int64_t end) {
  const torch::NoGradGuard no_grad;
  const auto count = static_cast<std::size_t>(end - begin);
  const auto pixels = upload(stack_images(std::span(local_batch_).subspan(begin, count)), options_.device);
  const Posterior posterior(vae_->encode(normalize_images(pixels).to(options_.dtype)).to(torch::kFloat32));
  const auto keys = rng_keys(options_.seed, std::span(refs_).subspan(begin, count));
  return posterior.sample(keys).to(torch::kCPU, torch::kFloat64);
}

}  // namespace millrace
