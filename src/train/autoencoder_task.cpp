#include "millrace/train/autoencoder_task.h"

#include "millrace/core/error.h"
#include "millrace/core/philox.h"
#include "millrace/encode/encoder.h"

namespace millrace {

void AutoencoderConfig::describe(config::Section& section) {
  section.key("l1", l1, "weight of the mean absolute error").at_least(0);
  section.key("mse", mse, "weight of the mean squared error").at_least(0);
  section.key("kl", kl, "weight of the posterior's KL divergence from the unit normal, mean per element").at_least(0);
}

AutoencoderTask::AutoencoderTask(AutoencoderKL vae, StripeStream& stream, Options options)
    : vae_(std::move(vae)),
      stream_(stream),
      options_(std::move(options)),
      samples_(stream, options_.stripes, ParcelSize{options_.samples_per_stripe, 1}, 2 * share_samples()) {}

void AutoencoderTask::next_batch() {
  share_.clear();
  refs_.clear();
  for (int i = 0; i < share_samples(); ++i) {
    auto sample = samples_.next();
    ensure(sample.has_value(), "training reads stripes without end");
    refs_.push_back(sample->ref);
    share_.push_back(std::move(*sample));
  }
}

// mean + deviation x noise, the noise keyed by each sample.
static torch::Tensor sample_posterior(const torch::Tensor& mean, const torch::Tensor& logvar,
                                      std::span<const SampleRef> refs, std::uint64_t seed) {
  auto noise = torch::empty(mean.sizes(), torch::kFloat32);
  const auto per_sample = noise.numel() / noise.size(0);
  for (std::size_t i = 0; i < refs.size(); ++i)
    fill_normal(
        {seed, refs[i].hash, refs[i].visit}, Purpose::posterior,
        {noise.data_ptr<float>() + static_cast<std::int64_t>(i) * per_sample, static_cast<std::size_t>(per_sample)});
  return mean + torch::exp(0.5 * logvar) * noise.to(mean.options());
}

torch::Tensor AutoencoderTask::loss(std::int64_t begin, std::int64_t end) {
  const std::span samples(share_.data() + begin, static_cast<std::size_t>(end - begin));
  const auto image = images_to_tensor(samples).to(options_.device);                 // (B, 3, H, W)
  const auto moments = vae_->encode(image.to(options_.dtype)).to(torch::kFloat32);  // (B, 8, h, w)
  const auto parts = moments.chunk(2, 1);
  const auto mean = parts[0], logvar = parts[1].clamp(-30, 20);
  const auto latent = sample_posterior(mean, logvar, std::span(refs_).subspan(begin, end - begin), options_.seed);
  const auto reconstruction = vae_->decode(latent.to(options_.dtype)).to(torch::kFloat32);
  const auto error = reconstruction - image;
  auto per_sample = [](const torch::Tensor& t) { return t.flatten(1).mean(1); };
  const auto kl = 0.5 * per_sample(mean.square() + logvar.exp() - 1 - logvar);
  record_.keep("image", image);
  record_.keep("moments", moments);
  record_.keep("latents", latent);
  record_.keep("reconstruction", reconstruction);
  const auto& w = options_.loss;
  return (w.l1 * per_sample(error.abs()) + w.mse * per_sample(error.square()) + w.kl * kl).sum() /
         options_.global_batch;
}

LedgerDelta AutoencoderTask::take_ledger_delta() {
  LedgerDelta news;
  for (auto stripe : options_.stripes) news.append(stream_.take_ledger_delta(stripe));
  return news;
}

double AutoencoderTask::latent_deviation() {
  torch::NoGradGuard guard;
  const auto parts =
      vae_->encode(images_to_tensor(share_).to(options_.device, options_.dtype)).to(torch::kFloat32).chunk(2, 1);
  return sample_posterior(parts[0], parts[1].clamp(-30, 20), refs_, options_.seed).std().item<double>();
}

}  // namespace millrace
