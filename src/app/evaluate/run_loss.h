#pragma once
#include <torch/types.h>

#include <optional>

#include "app_config.h"
#include "launch/session.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/train/validation.h"

namespace millrace {

// The loss on a run's data.validation, as its training measures it, per tenth of the timesteps.
class RunLoss {
 public:
  // Reads and encodes the set on every rank that gets a part of it. `config`: the run's, with data.validation; what is
  // rejected is listed under its run.dir. Collective.
  RunLoss(const Session& session, const TrainConfig& config, const PipelineFolder& pipeline, UNet2DConditionModel unet,
          torch::Dtype dtype);

  // With the U-Net's present weights; on rank 0. Error(requeue) soon after any rank was told to stop. Collective.
  ValidationLoss measure();

 private:
  const Session& session_;
  Group part_;  // the ranks that hold samples
  std::optional<Validation> validation_;
};

}  // namespace millrace
