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

// The networks of a run. Those that it trains are made in float32 on the host, in training mode; weights that a
// checkpoint replaces are neither made nor read.
namespace millrace {

// Weights by name that are an average already, of so many updates as far as that is known.
struct EmaStart {
  std::map<std::string, torch::Tensor> weights;
  std::optional<std::int64_t> updates;
};

// What a rank of `train` has loaded for its roles.
struct LoadedNetworks {
  // Errors reach all ranks: Error(io) names what is missing or broken. Collective.
  LoadedNetworks(const Session& session, const TrainPlan& plan);

  std::optional<EncodePipeline> encode_pipeline;  // of a producer
  UNet2DConditionModel unet{nullptr};             // of a trainer, as the next
  std::optional<EmaStart> ema;                    // what its EMA starts from, unless that is the U-Net
  std::optional<TextEncoder> text_encoder;        // where trainers make text embeddings
  torch::Tensor null_text;                        // which it has made of the empty caption, f16 (77, C) on the host
  torch::Tensor pictures_text;                    // of the pictures' prompts on trainers, as PicturePainter takes them
  AutoencoderKL pictures_vae{nullptr};            // of the first trainer, for the pictures
};

// Of how many updates diffusers' EMAModel says its weights in this folder are the average: optimization_step of the
// config.json there; nothing where it says nothing. Error(io) naming the file where that is no such number.
std::optional<std::int64_t> find_ema_updates(const std::filesystem::path& folder);

// `with_weights`: else they are undefined, for a trainer that gets those of the first one.
UNet2DConditionModel make_unet_for_run(const TrainPlan& plan, bool with_weights);
// What trainers make text embeddings with; nothing with encode.text_on=producer. Collective over `trainers`.
std::optional<TextEncoder> load_trainers_text_encoder(const Group& trainers, const Session& session,
                                                      const TrainPlan& plan);
// Those of the empty caption, f16 (77, C) on the host.
torch::Tensor null_text_of(TextEncoder& encoder, const TrainPlan& plan);
AutoencoderKL make_vae_for_run(const AutoencoderTrainConfig& config, const PipelineFolder& pipeline,
                               const Start& start);

}  // namespace millrace
