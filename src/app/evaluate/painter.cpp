#include "evaluate/painter.h"

#include <torch/utils.h>

#include "app_config.h"
#include "millrace/checkpoint/tensors.h"
#include "millrace/models/pipeline_export.h"
#include "millrace/models/weights.h"
#include "millrace/nn/weights.h"
#include "run/trained_run.h"

namespace millrace {

UNet2DConditionModel empty_unet_of(const CheckpointReader& checkpoint, const PipelineFolder& pipeline,
                                   Painter::Arithmetic arithmetic) {
  const auto vae = AutoencoderKLConfig::from_json(pipeline.config("vae"));
  const auto side = vae.latent_side(trained_config(checkpoint).transform.resolution);
  UNet2DConditionModel unet(
      UNet2DConditionConfig::from_json(with_sample_size(checkpoint.manifest().at("model"), side)));
  nn::place(*unet, arithmetic.device, arithmetic.dtype);
  unet->eval();
  return unet;
}

void load_weights_of(const CheckpointReader& checkpoint, const std::string& kind, UNet2DConditionModel& unet) {
  const torch::NoGradGuard no_grad;
  CheckpointTensors held(checkpoint);
  for (auto& [name, parameter] : weights_of(*unet)) {
    const auto value = held.tensor(kind, name);
    if (value.sizes() != parameter.sizes())
      fail(Exit::io, "{}: {} has another shape than the run's U-Net", checkpoint.path().string(), name);
    parameter.copy_(value);
  }
}

Painter::Painter(const PipelineFolder& pipeline, const TokenizerConfig& tokenizer, Arithmetic arithmetic,
                 UNet2DConditionModel unet, SchedulerConfig scheduler)
    : tokenizer_(ClipTokenizer::load(pipeline.component("tokenizer"), tokenizer)),
      model_{std::move(unet), pipeline.load_vae(arithmetic.device, torch::kFloat32),
             pipeline.load_text_encoder(arithmetic.device, arithmetic.dtype), tokenizer_, std::move(scheduler)} {}

Painter::Painter(const PipelineFolder& pipeline, const TokenizerConfig& tokenizer, Arithmetic arithmetic)
    : Painter(pipeline, tokenizer, arithmetic, pipeline.load_unet(arithmetic.device, arithmetic.dtype),
              pipeline.scheduler()) {}

Painter::Painter(const CheckpointReader& checkpoint, const PipelineFolder& pipeline, const TokenizerConfig& tokenizer,
                 Arithmetic arithmetic)
    : Painter(pipeline, tokenizer, arithmetic, empty_unet_of(checkpoint, pipeline, arithmetic),
              trained_scheduler(pipeline.scheduler(), trained_config(checkpoint).objective).as_exported()) {}

std::pair<std::int64_t, std::int64_t> Painter::picture_size(const GenerateConfig& config) const {
  return millrace::picture_size(model_, config);
}

std::vector<Image> Painter::paint(std::span<const ImageRequest> requests, const GenerateConfig& config) {
  std::vector<Image> images;
  generate(model_, requests, config, /*initial_latents=*/{},
           [&](const GeneratedImage& made) { images.push_back(made.image); });
  return images;
}

}  // namespace millrace
