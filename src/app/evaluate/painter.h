#pragma once
#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launch/session.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/generate/generate.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/text/tokenizer.h"

namespace millrace {

// A text-to-image model that pictures are painted with: a pipeline's, or a run's at one of its checkpoints. The VAE
// decodes in float32: in bfloat16 its levels between 128 and 255 would be rounded once more.
class Painter {
 public:
  struct Arithmetic {
    torch::Device device;
    torch::Dtype dtype;  // of the U-Net and the text encoder
  };
  Painter(const PipelineFolder& pipeline, const TokenizerConfig& tokenizer, Arithmetic arithmetic);
  // Of the run that the checkpoint is of, which was started from `pipeline`: it paints as the run's export will.
  // Weights are not read yet.
  Painter(const CheckpointReader& checkpoint, const PipelineFolder& pipeline, const TokenizerConfig& tokenizer,
          Arithmetic arithmetic);

  std::vector<Image> paint(std::span<const ImageRequest> requests, const GenerateConfig& config);

  // Height and width in pixels, which `config` asks for; Error(usage) where the model paints none of that size.
  std::pair<std::int64_t, std::int64_t> picture_size(const GenerateConfig& config) const;

  UNet2DConditionModel& unet() { return model_.unet; }

 private:
  Painter(const PipelineFolder& pipeline, const TokenizerConfig& tokenizer, Arithmetic arithmetic,
          UNet2DConditionModel unet, SchedulerConfig scheduler);

  ClipTokenizer tokenizer_;
  ImageModel model_;
};

// The U-Net of the checkpoint's run. Its weights are not read yet.
UNet2DConditionModel empty_unet_of(const CheckpointReader& checkpoint, const PipelineFolder& pipeline,
                                   Painter::Arithmetic arithmetic);
// `kind`: "weights" or "ema". Error(io) names file and tensor.
void load_weights_of(const CheckpointReader& checkpoint, const std::string& kind, UNet2DConditionModel& unet);

}  // namespace millrace
