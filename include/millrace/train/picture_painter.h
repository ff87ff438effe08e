#pragma once
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "millrace/comm/group.h"
#include "millrace/core/units.h"
#include "millrace/generate/sampling.h"

namespace millrace {

// Paints pictures of the same prompts and noise again and again: every trainer makes the latents of its share, the
// first one decodes them.
class PicturePainter {
 public:
  struct Options {
    Duration every = Duration::steps(1000);
    SamplingPlan sampling;
    std::vector<std::string> prompts;        // of each picture; picture i begins with the noise of seed i
    std::vector<std::int64_t> latent_shape;  // (C, h, w)
    int batch_size = 1;                      // pictures that are made together
    bool forward_is_collective = false;      // of the U-Net: no trainer can go on when one has failed in it
  };
  // `text` (2 N, 77, D), those of the negative prompts first; without guidance (N, 77, D). `vae`: of the first trainer.
  PicturePainter(UNet2DConditionModel unet, AutoencoderKL vae, torch::Tensor text, Options options);

  const Duration& every() const { return options_.every; }
  const std::vector<std::string>& prompts() const { return options_.prompts; }
  // With the weights that the U-Net has: f32 latents (N, C, h, w) on the host of the first trainer, undefined
  // elsewhere, and when all give up: `gives_up` is asked before each step of the sampler and once behind them, and must
  // say yes on all trainers when it is asked with `true` on one. AgreedError when a trainer fails at its share.
  // Collective.
  torch::Tensor paint(const Group& trainers, const std::function<bool(bool)>& gives_up);
  // On the first trainer.
  std::vector<Image> decode(const torch::Tensor& latents);

 private:
  std::string own_latents(const Group& trainers, const std::function<bool()>& gives_up);
  torch::Tensor denoised(std::int64_t begin, std::int64_t end, const std::function<bool()>& gives_up);

  UNet2DConditionModel unet_;
  AutoencoderKL vae_;
  torch::Tensor text_;
  Options options_;
};

}  // namespace millrace
