#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "millrace/comm/group.h"
#include "millrace/core/units.h"
#include "millrace/diffusion/objective.h"
#include "millrace/encode/batch.h"
#include "millrace/encode/text_encoder.h"
#include "millrace/models/unet_2d_condition.h"
#include "millrace/train/validation_loss.h"

namespace millrace {

// Replaces run.seed in everything random about validation: order, crops, timesteps, noise. So nothing random is shared
// with training, and all runs measure alike on the same set.
inline constexpr std::uint64_t validation_seed = 0x76616c6964617465;  // "validate"

// The training objective, without caption drop and input perturbation, on a fixed set of encoded samples with fixed
// timesteps and noise; if the objective weights samples, also unweighted. Every trainer holds its part of the set in
// host memory.
class Validation {
 public:
  struct Options {
    Duration every;
    ObjectiveConfig objective;
    std::int64_t samples = 0;  // of all trainers together
    int micro_batch = 1;
    std::optional<TextEncoder> text_encoder;  // if the samples have tokens
    LatentScale latent_scale;                 // of the VAE
    torch::Device device = torch::kCPU;
    torch::Dtype dtype = torch::kFloat32;
  };
  Validation(UNet2DConditionModel unet, NoiseSchedule schedule, std::vector<EncodedBatch> batches, Options options);

  const Duration& every() const { return options_.every; }
  // The loss with the present weights of the U-Net, which stay as they are. Nothing if `gives_up` says so; it is asked
  // before each micro-batch and must answer alike on all trainers. Collective: every trainer makes as many passes as
  // the one with the most samples, because where parameters are split each pass is collective.
  std::optional<ValidationLoss> loss(const Group& trainers, const std::function<bool()>& gives_up);

 private:
  struct Part {
    const EncodedBatch* batch;
    std::int64_t begin, end;

    std::vector<RngKey> keys() const {
      return rng_keys(validation_seed, std::span(batch->refs).subspan(begin, end - begin));
    }
  };
  // Squared errors of a part's samples without the objective's weights: f32 (samples), on the host.
  torch::Tensor errors(const Part& part, std::span<const std::int64_t> timesteps);
  std::vector<float> weights_of(std::span<const std::int64_t> timesteps) const;
  std::vector<std::int64_t> timesteps_of(const Part& part) const;

  UNet2DConditionModel unet_;
  NoiseSchedule schedule_;
  std::vector<EncodedBatch> batches_;
  Options options_;
};

}  // namespace millrace
