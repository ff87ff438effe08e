#pragma once
#include <torch/types.h>

#include <cstdint>
#include <span>
#include <vector>

#include "millrace/checkpoint/reader.h"
#include "millrace/generate/generate.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/text/tokenizer.h"
#include "run/session.h"

namespace millrace {

// A text-to-image model that pictures are painted with: a pipeline's, or a run's at one of its checkpoints.
class Painter {
 public:
  struct Arithmetic {
    torch::Device device;
    torch::Dtype dtype;
  };
  Painter(const PipelineFolder& pipeline, const TokenizerConfig& tokenizer, Arithmetic arithmetic);
  // Of the run that the checkpoint is of, which was started from `pipeline`: it paints as the run's export will.
  // Weights are not read yet.
  Painter(const CheckpointReader& checkpoint, const PipelineFolder& pipeline, const TokenizerConfig& tokenizer,
          Arithmetic arithmetic);

  // The weights that an export of the checkpoint has: the EMA where there is one. Error(io) names file and tensor.
  void load_weights(const CheckpointReader& checkpoint);
  std::vector<Image> paint(std::span<const ImageRequest> requests, const GenerateConfig& config);

  UNet2DConditionModel& unet() { return model_.unet; }

 private:
  Painter(const PipelineFolder& pipeline, const TokenizerConfig& tokenizer, Arithmetic arithmetic,
          UNet2DConditionModel unet, SchedulerConfig scheduler);

  ClipTokenizer tokenizer_;
  ImageModel model_;
};

}  // namespace millrace
