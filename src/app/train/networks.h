#pragma once
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "app_config.h"
#include "launch/session.h"
#include "millrace/encode/text_encoder.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/produce/encode_pipeline.h"
#include "run/resume.h"
#include "train/train_plan.h"

// The networks of a run. Networks to be trained are made in float32 on the host, in training mode; weights that a
// checkpoint will replace are neither made nor read.
namespace millrace {

// Weights by name, which are an average already, and of how many updates, if that is known.
struct EmaStart {
  std::map<std::string, torch::Tensor> weights;
  std::optional<std::int64_t> updates;
};

// What a rank of `train` has loaded for its roles.
struct LoadedNetworks {
  // Errors reach all ranks: Error(io) names what is missing or broken. Collective.
  LoadedNetworks(const Session& session, const TrainPlan& plan);

  std::optional<EncodePipeline> encode_pipeline;  // of a producer
  UNet2DConditionModel unet{nullptr};             // of a trainer, as are the next two
  std::optional<EmaStart> ema;                    // what its EMA starts from, if not from the U-Net
  std::optional<TextEncoder> text_encoder;        // if trainers make text embeddings
  torch::Tensor null_text;                        // made by it of the empty caption: f16 (77, C) on the host
  torch::Tensor pictures_text;          // embeddings of the pictures' prompts on trainers, as PicturePainter takes them
  AutoencoderKL pictures_vae{nullptr};  // on the first trainer, for the pictures
};

// How many updates the weights in this folder are the average of, according to diffusers' EMAModel: optimization_step
// of its config.json; nothing if that is not there. Error(io) naming the file if it is no such number.
std::optional<std::int64_t> find_ema_updates(const std::filesystem::path& folder);

// Without `with_weights` they are undefined, for a trainer that gets those of the first one.
UNet2DConditionModel make_unet_for_run(const TrainPlan& plan, bool with_weights);
// The text encoder of trainers; nothing with encode.text_on=producer. Collective over `trainers`.
std::optional<TextEncoder> load_trainers_text_encoder(const Group& trainers, const Session& session,
                                                      const TrainPlan& plan);
// Embeddings of the empty caption, f16 (77, C) on the host.
torch::Tensor null_text_of(TextEncoder& encoder, const TrainPlan& plan);
AutoencoderKL make_vae_for_run(const AutoencoderTrainConfig& config, const PipelineFolder& pipeline,
                               const Start& start);

}  // namespace millrace
