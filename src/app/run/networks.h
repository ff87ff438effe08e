#pragma once
#include "app_config.h"
#include "millrace/models/pipeline_folder.h"
#include "run/resume.h"
#include "run/train_plan.h"

// The networks that a run trains, in float32 on the host. Weights that a checkpoint replaces are neither made nor read.
namespace millrace {

UNet2DConditionModel make_unet_for_run(const TrainPlan& plan);
AutoencoderKL make_vae_for_run(const AutoencoderTrainConfig& config, const PipelineFolder& pipeline,
                               const Start& start);

}  // namespace millrace
