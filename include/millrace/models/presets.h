#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

// The published shapes of Stable Diffusion, and a toy one that two slow cores can train.
namespace millrace {

enum class Preset { tiny, sd1, sd2, sd2_v };

// "tiny", "sd1", "sd2", "sd2-v"; anything else is Error(usage) that lists them.
Preset parse_preset(std::string_view name);

// The config files of a preset: sd1 = Stable Diffusion 1.5, sd2 = 2.1-base, sd2-v = 2.1 (768 pixels, v-prediction).
struct PresetConfigs {
  nlohmann::json unet, vae, text_encoder, scheduler;
  double token_embedding_std = 0;  // 0 = CLIP's own
};
PresetConfigs preset_configs(Preset preset);

// The token that fills up short captions: "<|endoftext|>", or "!" from Stable Diffusion 2 on.
std::string_view preset_pad_token(Preset preset);

// Writes a complete diffusers folder with random fp32 weights, the same ones for the same seed. `write_tokenizer` fills
// its folder of that name. `out` must not exist or be empty (else Error(usage)); it appears only when it is complete.
// One component is in memory at a time. Without a seed there are no weights, only the files that tell the shapes.
void init_pipeline(Preset preset, const std::function<void(const std::filesystem::path&)>& write_tokenizer,
                   const std::filesystem::path& out, std::optional<std::uint64_t> seed);

}  // namespace millrace
