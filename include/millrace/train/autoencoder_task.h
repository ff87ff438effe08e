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

// Section `autoencoder`: weights of the loss terms (each a mean per element), and the scaling factor of the latents.
struct AutoencoderConfig {
  double l1 = 1, mse = 1, kl = 1e-5;
  std::string scaling_factor = "auto";  // auto, measure, keep or a number

  void describe(config::Section& section);
  void check(config::Report& report) const;
  // Whether the scaling factor stays that of the VAE the run starts from.
  bool keeps_scaling_factor(bool is_pretrained) const;
  // The scaling factor, unless it has to be measured: `folder`, that of the VAE the run starts from, or the number
  // given.
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

  bool next_batch(double seconds) override;  // reads synchronously; ignores `seconds`
  const std::vector<SampleRef>& refs() const override { return refs_; }
  std::vector<torch::Tensor> inputs(std::int64_t begin, std::int64_t end) override;
  torch::Tensor loss(const std::vector<torch::Tensor>& inputs) override;
  void count_loss_parts() override;
  LossParts take_loss_parts() override;  // l1, mse, kl
  LedgerDelta take_ledger_delta() override;

  // Standard deviation of the sampled latents over the present global batch; 1 / scaling_factor. No gradient.
  // Collective.
  double latent_deviation(const Group& trainers);

 private:
  // Latents of samples [begin, end) of the local batch: float64, on the host.
  torch::Tensor sampled_latents(std::int64_t begin, std::int64_t end);
  int local_batch_size() const { return static_cast<int>(options_.stripes.size()) * options_.samples_per_stripe; }

  AutoencoderKL vae_;
  StripeStream& stream_;
  Options options_;
  InterleavedReader samples_;
  std::vector<TransformedSample> local_batch_;
  std::vector<SampleRef> refs_;
  torch::Tensor last_parts_, parts_;  // (3): loss terms of the last loss; sums over the losses that count
};

}  // namespace millrace
