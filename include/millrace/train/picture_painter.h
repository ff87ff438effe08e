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
// first trainer decodes all.
class PicturePainter {
 public:
  struct Options {
    Duration every = Duration::steps(1000);
    SamplingPlan sampling;
    std::vector<std::string> prompts;        // one for each picture; picture i starts from the noise of seed i
    std::vector<std::int64_t> latent_shape;  // (C, h, w)
    int batch_size = 1;                      // pictures sampled at once
    bool forward_is_collective = false;      // the U-Net's: no trainer can go on after another one failed in it
  };
  // `text`: embeddings (2 N, 77, D), those of the negative prompts first; without guidance (N, 77, D). `vae`: used on
  // the first trainer only.
  PicturePainter(UNet2DConditionModel unet, AutoencoderKL vae, torch::Tensor text, Options options);

  const Duration& every() const { return options_.every; }
  const std::vector<std::string>& prompts() const { return options_.prompts; }
  // Paints with the present weights of the U-Net. Returns f32 latents (N, C, h, w) in host memory on the first trainer;
  // undefined elsewhere, and everywhere if all give up. `gives_up` is asked before each sampling step and once after
  // the last one; it must return true on all trainers if one of them passes `true`. AgreedError when a trainer fails at
  // its share. Collective.
  torch::Tensor paint(const Group& trainers, const std::function<bool(bool)>& gives_up);
  // Only on the first trainer.
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
