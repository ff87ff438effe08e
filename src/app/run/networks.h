#pragma once
#include <torch/torch.h>

#include <map>
#include <string>

#include "app_config.h"
#include "millrace/models/pipeline_folder.h"
#include "run/resume.h"
#include "run/train_plan.h"

// The networks that a run trains, in float32 on the host. Weights that a checkpoint replaces are neither made nor read.
namespace millrace {

UNet2DConditionModel make_unet_for_run(const TrainPlan& plan);
// The weights that the EMA starts from, by name; empty where model.unet.ema_start is null. Error(io) names what is
// missing there.
std::map<std::string, torch::Tensor> load_ema_start(const TrainPlan& plan);
AutoencoderKL make_vae_for_run(const AutoencoderTrainConfig& config, const PipelineFolder& pipeline,
                               const Start& start);

}  // namespace millrace
