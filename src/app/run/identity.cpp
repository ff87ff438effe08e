#include "run/identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>

#include "app_config.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/run_files.h"
#include "millrace/core/secrets.h"
#include "millrace/dataset/filter.h"
#include "millrace/dataset/table.h"
#include "millrace/encode/fingerprint.h"
#include "millrace/io/archive_name.h"
#include "millrace/io/net/urls.h"
#include "millrace/models/initialize.h"
#include "run/trained_run.h"

namespace millrace {

// Where links lead; the path itself where that cannot be told.
static fs::path resolve(const fs::path& path) {
  std::error_code error;
  auto resolved = fs::canonical(path, error);
  return error ? path : resolved;
}

// Where those archives lie of which names and sizes do not tell whether they are the same: as it is spelled, and where
// links lead. Nothing where they do.
static nlohmann::json paths_of(const nlohmann::json& identity, const Manifest& archives) {
  const auto train = readable_config(identity).data.train;
  if (train.type == SourceConfig::Type::synthetic || may_have_moved(identity, archives)) return nullptr;
  std::vector<std::string> places;
  for (const auto& archive : archives.archives) places.push_back(archive.path);
  if (train.type == SourceConfig::Type::latents) places = train.path;  // a cache names the images it is of
  Hasher128 spelled, resolved;
  std::map<fs::path, fs::path> folders;  // resolved, each once
  const auto add = [](Hasher128& hasher, const std::string& path) { hasher.update(path.c_str(), path.size() + 1); };
  for (const auto& place : places) {
    const auto file = local_path(place);
    if (file.empty()) {
      const auto address = without_secrets(place);
      for (auto* hasher : {&spelled, &resolved})
        add(*hasher, address.substr(0, address.find('?')));  // dates of signatures
      continue;
    }
    std::error_code error;  // the working folder is gone
    const auto path = fs::absolute(file, error).lexically_normal();
    const auto [folder, is_new] = folders.try_emplace(path.parent_path());
    if (is_new) folder->second = resolve(folder->first);
    add(spelled, path.string());
    add(resolved, (folder->second / path.filename()).string());
  }
  return {{"spelled", spelled.digest().hex()}, {"resolved", resolved.digest().hex()}};
}

nlohmann::json run_identity(const std::string& kind, const std::string& config_yaml, const DataPlan& data,
                            const nlohmann::json& model, const std::filesystem::path& pipeline,
                            const nlohmann::json& encoders) {
  nlohmann::json identity = {{"kind", kind},
                             {"config", config_yaml},
                             {"data",
                              {{"manifest", data.manifest.digest().hex()},
                               {"archives", data.manifest.archives.size()},
                               {"stripes", data.stripes.stripes}}},
                             {"model", model},
                             {"pipeline", std::filesystem::absolute(pipeline).string()},
                             {"encoders", encoders}};
  identity["paths"] = paths_of(identity, data.manifest);
  return identity;
}

// Whether a VAE's run gives its checkpoints the scaling_factor of model.pipeline.
static bool keeps_scaling_factor(const nlohmann::json& identity) {
  AutoencoderTrainConfig config;
  (void)config::load_text(config, identity.value("config", ""), "the present configuration");
  return config.autoencoder.keeps_scaling_factor(config.model.init == ModelConfig::Init::pretrained);
}

// Behind addresses none has a size; a list's is not that of its images, and of encodings, names and sizes are those of
// the images they were made from.
bool may_have_moved(const nlohmann::json& identity, const Manifest& archives) {
  const auto source = readable_config(identity).data.train;
  if (source.type == SourceConfig::Type::latents) return false;
  return std::ranges::all_of(archives.archives, [&](const Archive& archive) {
    const bool holds_images =
        !is_table(archive.path) || (is_kind(archive.path, ArchiveKind::parquet) && !source.columns.image);
    return archive.bytes > 0 && holds_images;
  });
}

std::optional<bool> lie_elsewhere(const nlohmann::json& was, const nlohmann::json& is) {
  const auto before = was.value("paths", nlohmann::json()), after = is.value("paths", nlohmann::json());
  if (!before.is_object() || !after.is_object()) return std::nullopt;
  return before.at("spelled") != after.at("spelled") && before.at("resolved") != after.at("resolved");
}

std::vector<std::string> data_changes(const CheckpointReader& checkpoint, const std::string& before,
                                      const Manifest& archives) {
  const auto file = run_of_checkpoint(checkpoint.path()) / run_file::archives;
  try {
    const auto listing = read_file(file);
    if (hash128(listing).hex() == before) return listing_changes(listing, archives.listing());
  } catch (const Error&) {
  }
  return {fmt::format("which archives differ cannot be told without the {} of that run", run_file::archives)};
}

// The keys of a config.json that the training of its network depends on. Which version wrote the file is in keys with
// _, newer versions spell out what is null, and how large users of a VAE tile, or of a U-Net paint, is none of it; nor
// is what a VAE's latents are multiplied by, unless the run keeps it.
static nlohmann::json without_idle_keys(nlohmann::json config, bool is_vae, bool keeps_scale) {
  for (auto entry = config.begin(); entry != config.end();) {
    const auto& key = entry.key();
    const bool is_idle = key.starts_with('_') || entry.value().is_null() || key == "sample_size" ||
                         (is_vae && key == "scaling_factor" && !keeps_scale);
    entry = is_idle ? config.erase(entry) : std::next(entry);
  }
  return config;
}

// As it is built, whichever of its defaults the file spells out; nothing where it cannot be.
static std::optional<UNet2DConditionConfig> unet_of(const nlohmann::json& config, const std::string& whose) {
  try {
    auto unet = UNet2DConditionConfig::from_json(config, whose);
    unet.source = nullptr;
    unet.sample_size.reset();
    return unet;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::vector<std::string> model_changes(const nlohmann::json& was, const nlohmann::json& is) {
  const auto before = was.value("model", nlohmann::json()), after = is.value("model", nlohmann::json());
  const bool is_vae = is_of_vae(was), keeps_scale = is_vae && keeps_scaling_factor(is);
  if (before == after) return {};
  if (!before.is_object() || !after.is_object()) return {fmt::format("model: {} -> {}", before.dump(), after.dump())};
  if (!is_vae) {
    const auto unet = unet_of(before, "the checkpoint's U-Net");
    if (unet && unet == unet_of(after, "this run's U-Net")) return {};
  }
  const auto differences = [&](const nlohmann::json& left, const nlohmann::json& right) {
    return fingerprint_differences(nlohmann::json::object({{"model", left}}),
                                   nlohmann::json::object({{"model", right}}));
  };
  auto changes =
      differences(without_idle_keys(before, is_vae, keeps_scale), without_idle_keys(after, is_vae, keeps_scale));
  // Where nothing else differs of two U-Nets that are not the same, it is a null that stands for something.
  if (changes.empty() && !is_vae) changes = differences(before, after);
  return changes;
}

bool holds_network(const CheckpointReader& checkpoint, const nlohmann::json& identity) {
  if (identity.at("kind") != checkpoint.manifest().at("kind")) return false;
  const auto& model = identity.at("model");
  const auto wanted = is_of_vae(identity)
                          ? parameter_shapes(*AutoencoderKL(AutoencoderKLConfig::from_json(model)))
                          : parameter_shapes(*UNet2DConditionModel(UNet2DConditionConfig::from_json(model)));
  Shapes held;
  for (const auto& name : checkpoint.names("weights")) held[name] = checkpoint.entry("weights", name).shape;
  return held == wanted;
}

// By the conditions, not by their spelling.
static bool has_same_filters(const nlohmann::json& before, const nlohmann::json& after) {
  const auto filters = [](const nlohmann::json& manifest) {
    return Filter(readable_config(manifest).data.train.filters);
  };
  try {
    return filters(before).is_same_as(filters(after));
  } catch (const Error&) {
    return false;
  }
}

bool means_the_same(const config::Change& change, const nlohmann::json& before, const nlohmann::json& after) {
  const auto is_same = [&](const char* pointer) {
    const nlohmann::json::json_pointer place(pointer);
    return before.contains(place) && after.contains(place) && !before.at(place).is_null() &&
           before.at(place) == after.at(place);
  };
  if (change.key == "data.stripes") return is_same("/data/stripes");
  if (change.key == "data.train.idx_to_prompt") return is_same("/encoders/data.train/idx_to_prompt");
  if (change.key == "objective.zero_terminal_snr") return is_same("/encoders/scheduler/rescale_betas_zero_snr");
  return change.key == "data.train.filters" && has_same_filters(before, after);
}

nlohmann::json identity_of_losses(const nlohmann::json& identity) {
  const auto value_at = [&](const char* pointer) {
    return identity.value(nlohmann::json::json_pointer(pointer), nlohmann::json());
  };
  return {{"data", value_at("/data/manifest")},
          {"model", without_idle_keys(value_at("/model"), is_of_vae(identity), /*keeps_scale=*/false)},
          {"encoders", value_at("/encoders")}};
}

}  // namespace millrace
