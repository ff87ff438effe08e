#pragma once
#include <optional>
#include <string>

#include "millrace/comm/group.h"
#include "millrace/config/config.h"
#include "millrace/loader/interleaved_reader.h"
#include "millrace/loader/stripe_stream.h"
#include "millrace/models/autoencoder_kl.h"
#include "millrace/train/task.h"

namespace millrace {

// Section `autoencoder`: weights of the loss terms, each a mean per element, and what latents will be multiplied by.
struct AutoencoderConfig {
  double l1 = 1, mse = 1, kl = 1e-5;
  std::string scaling_factor = "auto";  // auto, measure, keep or a number

  void describe(config::Section& section);
  void check(config::Report& report) const;
  // Whether it is that of the VAE that the run begins with.
  bool keeps_scaling_factor(bool is_pretrained) const;
  // The factor that is not measured: of `folder` (the VAE that the run begins with), or the given one.
  std::optional<double> chosen_scaling_factor(bool is_pretrained, double folder) const;
};

// Training the VAE on the images themselves: reconstruction + KL. Each trainer reads its own stripes.
class AutoencoderTask : public Task {
 public:
  struct Options {
    AutoencoderConfig loss;
    std::uint64_t seed = 0;
    int global_batch = 1, micro_batch = 1;
    std::vector<std::uint32_t> stripes;
    int samples_per_stripe = 1;
    torch::Device device = torch::kCPU;
    torch::Dtype dtype = torch::kFloat32;
  };
  AutoencoderTask(AutoencoderKL vae, StripeStream& stream, Options options);

  bool next_batch(double seconds) override;  // reads here and now, however long it takes
  const std::vector<SampleRef>& refs() const override { return refs_; }
  std::vector<torch::Tensor> inputs(std::int64_t begin, std::int64_t end) override;
  torch::Tensor loss(const std::vector<torch::Tensor>& inputs) override;
  void count_loss_parts() override;
  LossParts take_loss_parts() override;  // l1, mse, kl
  LedgerDelta take_ledger_delta() override;

  // Standard deviation of the sampled latents over the present batch of all trainers: 1 / scaling_factor. No gradient.
  // Collective.
  double latent_deviation(const Group& trainers);

 private:
  // Of part of the local batch, in double precision on the host.
  torch::Tensor sampled_latents(std::int64_t begin, std::int64_t end);
  int local_batch_size() const { return static_cast<int>(options_.stripes.size()) * options_.samples_per_stripe; }

  AutoencoderKL vae_;
  StripeStream& stream_;
  Options options_;
  InterleavedReader samples_;
  std::vector<TransformedSample> local_batch_;
  std::vector<SampleRef> refs_;
  torch::Tensor last_parts_, parts_;  // (3): of the last loss, of those that count
};

}  // namespace millrace
