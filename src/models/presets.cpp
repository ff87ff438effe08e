#include "millrace/models/presets.h"

#include "millrace/core/files.h"
#include "millrace/models/initialize.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/weights.h"
#include "model_index.h"
#include "staged_folder.h"

namespace millrace {

namespace {

using nlohmann::json;

// `make(config, seed)` gives the module, which is made only when there is a seed.
template <class Make>
void write_network(Make make, const json& config, std::optional<std::uint64_t> seed, const StagedFolder& staged,
                   std::string_view name) {
  const fs::path folder = staged.subfolder(name);
  write_json(folder / "config.json", config);
  if (seed) save_weights(weights_of(*make(config, *seed)), folder, weights_stem(name));
}

}  // namespace

void init_pipeline(Preset preset, const std::function<void(const fs::path&)>& write_tokenizer, const fs::path& out,
                   std::optional<std::uint64_t> seed) {
  const PresetConfigs configs = preset_configs(preset);
  StagedFolder staged(out);
  write_tokenizer(staged.subfolder("tokenizer"));
  write_json(staged.subfolder("scheduler") / "scheduler_config.json", configs.scheduler);
  write_json(staged.path() / "model_index.json", model_index(configs.scheduler.at("_class_name")));
  const auto text_encoder = [&](const json& config, std::uint64_t s) {
    return make_text_encoder(config, s, configs.token_embedding_std);
  };
  write_network(text_encoder, configs.text_encoder, seed, staged, "text_encoder");
  write_network(make_vae, configs.vae, seed, staged, "vae");
  write_network(make_unet, configs.unet, seed, staged, "unet");
  staged.publish();
}

}  // namespace millrace
