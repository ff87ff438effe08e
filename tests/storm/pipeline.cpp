#include "pipeline.h"
#include "millrace/io/json.h"
#include "millrace/models/initialize.h"
#include "millrace/models/weights.h"
#include "millrace/nn/weights.h"

namespace millrace::storm {
namespace {

using nlohmann::json;

void replace(const fs::path& folder, const json& config, const torch::nn::Module& module, std::string_view stem) {
  write_file_atomically(folder / "config.json", format_json(config));
  save_weights(weights_of(module), folder, stem);
}

void shrink_unet(const fs::path& folder) {
  auto config = read_json(folder / "config.json");
  config.update({{"attention_head_dim", {1, 2}},
                 {"block_out_channels", {8, 16}},
                 {"cross_attention_dim", 16},
                 {"down_block_types", {"CrossAttnDownBlock2D", "DownBlock2D"}},
                 {"norm_num_groups", 4},
                 {"sample_size", 4},
                 {"up_block_types", {"UpBlock2D", "CrossAttnUpBlock2D"}}});
  replace(folder, config, *make_unet(config, 0), diffusers_stem);
}

void shrink_vae(const fs::path& folder) {
  auto config = read_json(folder / "config.json");
  config.update({{"block_out_channels", {8, 8}},
                 {"down_block_types", {"DownEncoderBlock2D", "DownEncoderBlock2D"}},
                 {"norm_num_groups", 4},
                 {"sample_size", pipeline_resolution},
                 {"up_block_types", {"UpDecoderBlock2D", "UpDecoderBlock2D"}}});
  replace(folder, config, *make_vae(config, 0), diffusers_stem);
}

void shrink_text_encoder(const fs::path& folder) {
  auto config = read_json(folder / "config.json");
  config.update({{"hidden_size", 16},
                 {"intermediate_size", 16},
                 {"num_attention_heads", 2},
                 {"num_hidden_layers", 1},
                 {"projection_dim", 16}});
  replace(folder, config, *make_text_encoder(config, 0, 1.0), transformers_stem);
}

}  // namespace

void shrink_pipeline(const fs::path& tiny) {
  shrink_unet(tiny / "unet");
  shrink_vae(tiny / "vae");
  shrink_text_encoder(tiny / "text_encoder");
}

}  // namespace millrace::storm
