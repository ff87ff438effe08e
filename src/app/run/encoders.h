#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/checkpoint/reader.h"
#include "millrace/diffusion/scheduler_config.h"
#include "millrace/models/pipeline_folder.h"

// What of a pipeline's folder a U-Net is trained with besides its own weights, as checkpoints keep it ("encoders"), and
// what of it is another now.
namespace millrace {

// What latents are scaled, and noise is made, by.
nlohmann::json describe_scales(const PipelineFolder& folder, const SchedulerConfig& scheduler);
// network_digest; null where there are no weights, which a run on encodings can do without.
nlohmann::json digest_if_there(const PipelineFolder& folder, const char* component);
// Of the tokenizer's files; null where there are none.
nlohmann::json tokenizer_digest_if_there(const PipelineFolder& folder);

struct EncoderChange {
  std::string part;  // "vae.weights"; of latent caches, which are trained on in place of encoders, data.train.path
  std::string text;  // "model.pipeline: vae.weights: A -> B"
};
// Older checkpoints do not tell, and what one of the two lacks was not needed there.
std::vector<EncoderChange> encoder_changes(nlohmann::json before, nlohmann::json after);

// The U-Net is about to be used with the parts of `folder`: Error(usage) with `way_out` as its hint where it was
// trained with others; a warning if `allow_changes`, or where the tokenizer alone is another. Reads the weights of
// which the checkpoint holds digests.
void check_encoders(const CheckpointReader& checkpoint, const PipelineFolder& folder, bool allow_changes,
                    const std::string& way_out);

}  // namespace millrace
