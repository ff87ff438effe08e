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

namespace millrace {

static const char* name_of(RunIdentity::Kind kind) {
  return kind == RunIdentity::Kind::vae ? "vae" : "unet";
}

static TrainConfig readable_config(const std::string& yaml) {
  TrainConfig config;
  (void)config::load_text(config, yaml, "the present configuration");
  return config;
}

// Checkpoints of older versions have the schedule of the pipeline's folder, whatever the objective made of it.
static nlohmann::json encoders_in(const nlohmann::json& manifest, const ObjectiveConfig& objective) {
  auto encoders = manifest.value("encoders", nlohmann::json());
  if (encoders.is_object() && encoders.contains("scheduler") && objective.zero_terminal_snr)
    encoders["scheduler"]["rescale_betas_zero_snr"] = true;
  return encoders;
}

nlohmann::json RunIdentity::to_json() const {
  nlohmann::json json = {{"kind", name_of(kind)}, {"config", config_yaml}, {"data", data},    {"model", model},
                         {"pipeline", pipeline},  {"encoders", encoders},  {"paths", nullptr}};
  if (paths) json["paths"] = {{"spelled", paths->spelled}, {"resolved", paths->resolved}};
  return json;
}

RunIdentity RunIdentity::from_manifest(const nlohmann::json& manifest) {
  RunIdentity identity;
  identity.kind = manifest.at("kind") == name_of(Kind::vae) ? Kind::vae : Kind::unet;
  identity.config_yaml = manifest.value("config", "");
  identity.config = readable_config(identity.config_yaml);
  identity.data = manifest.value("data", nlohmann::json());
  identity.model = manifest.value("model", nlohmann::json());
  identity.pipeline = manifest.value("pipeline", "");
  identity.encoders = encoders_in(manifest, identity.config.objective);
  if (const auto paths = manifest.find("paths"); paths != manifest.end() && paths->is_object())
    identity.paths = DataPaths{paths->at("spelled"), paths->at("resolved")};
  return identity;
}

static std::optional<RunIdentity::DataPaths> digest_paths(const RunIdentity& identity, const Manifest& archives) {
  const auto& train = identity.config.data.train;
  if (train.type == SourceConfig::Type::synthetic || may_have_moved(identity, archives)) return std::nullopt;
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
    if (is_new) folder->second = resolved_path(folder->first);
    add(spelled, path.string());
    add(resolved, (folder->second / path.filename()).string());
  }
  return RunIdentity::DataPaths{spelled.digest().hex(), resolved.digest().hex()};
}

RunIdentity make_identity(RunIdentity::Kind kind, const std::string& config_yaml, const DataPlan& data,
                          const nlohmann::json& model, const std::filesystem::path& pipeline,
                          const nlohmann::json& encoders) {
  RunIdentity identity{.kind = kind,
                       .config_yaml = config_yaml,
                       .config = readable_config(config_yaml),
                       .data = {{"manifest", data.manifest.digest().hex()},
                                {"archives", data.manifest.archives.size()},
                                {"stripes", data.stripes.stripes}},
                       .model = model,
                       .pipeline = std::filesystem::absolute(pipeline).string(),
                       .encoders = encoders};
  identity.paths = digest_paths(identity, data.manifest);
  return identity;
}

// Whether a VAE's run gives its checkpoints the scaling_factor of model.pipeline.
static bool keeps_scaling_factor(const RunIdentity& identity) {
  AutoencoderTrainConfig config;
  (void)config::load_text(config, identity.config_yaml, "the present configuration");
  return config.autoencoder.keeps_scaling_factor(config.model.init == ModelConfig::Init::pretrained);
}

// Behind addresses none has a size; a list's is not that of its images, and of encodings, names and sizes are those of
// the images they were made from.
bool may_have_moved(const RunIdentity& identity, const Manifest& archives) {
  const auto& source = identity.config.data.train;
  if (source.type == SourceConfig::Type::latents) return false;
  return std::ranges::all_of(archives.archives, [&](const Archive& archive) {
    const bool holds_images =
        !is_table(archive.path) || (is_kind(archive.path, ArchiveKind::parquet) && !source.columns.image);
    return archive.bytes > 0 && holds_images;
  });
}

std::optional<bool> lie_elsewhere(const RunIdentity& before, const RunIdentity& now) {
  if (!before.paths || !now.paths) return std::nullopt;
  return before.paths->spelled != now.paths->spelled && before.paths->resolved != now.paths->resolved;
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

static std::vector<std::string> differences(const nlohmann::json& before, const nlohmann::json& now) {
  return fingerprint_differences(nlohmann::json::object({{"model", before}}), nlohmann::json::object({{"model", now}}));
}

std::vector<std::string> model_changes(const RunIdentity& before, const RunIdentity& now) {
  const auto &was = before.model, &is = now.model;
  if (was == is) return {};
  if (!was.is_object() || !is.is_object()) return {fmt::format("model: {} -> {}", was.dump(), is.dump())};
  const bool is_vae = before.kind == RunIdentity::Kind::vae, keeps_scale = is_vae && keeps_scaling_factor(now);
  if (!is_vae) {
    const auto unet = unet_of(was, "the checkpoint's U-Net");
    if (unet && unet == unet_of(is, "this run's U-Net")) return {};
  }
  auto changes = differences(without_idle_keys(was, is_vae, keeps_scale), without_idle_keys(is, is_vae, keeps_scale));
  // Where nothing else differs of two U-Nets that are not the same, it is a null that stands for something.
  if (changes.empty() && !is_vae) changes = differences(was, is);
  return changes;
}

bool holds_network(const CheckpointReader& checkpoint, const RunIdentity& identity) {
  const auto& model = identity.model;
  if (checkpoint.manifest().at("kind") != name_of(identity.kind)) return false;
  const auto wanted = identity.kind == RunIdentity::Kind::vae
                          ? parameter_shapes(*AutoencoderKL(AutoencoderKLConfig::from_json(model)))
                          : parameter_shapes(*UNet2DConditionModel(UNet2DConditionConfig::from_json(model)));
  Shapes held;
  for (const auto& name : checkpoint.names("weights")) held[name] = checkpoint.entry("weights", name).shape;
  return held == wanted;
}

// By the conditions, not by their spelling.
static bool has_same_filters(const RunIdentity& before, const RunIdentity& now) {
  const auto filters = [](const RunIdentity& identity) { return Filter(identity.config.data.train.filters); };
  try {
    return filters(before).is_same_as(filters(now));
  } catch (const Error&) {
    return false;
  }
}

// Known of both, and the same.
static bool has_same(const char* pointer, const nlohmann::json& before, const nlohmann::json& now) {
  const nlohmann::json::json_pointer place(pointer);
  return before.contains(place) && now.contains(place) && !before.at(place).is_null() &&
         before.at(place) == now.at(place);
}

bool means_the_same(const config::Change& change, const RunIdentity& before, const RunIdentity& now) {
  const auto& key = change.key;
  if (key == "data.stripes") return has_same("/stripes", before.data, now.data);
  if (key == "data.train.idx_to_prompt") return has_same("/data.train/idx_to_prompt", before.encoders, now.encoders);
  if (key == "objective.zero_terminal_snr")
    return has_same("/scheduler/rescale_betas_zero_snr", before.encoders, now.encoders);
  return key == "data.train.filters" && has_same_filters(before, now);
}

nlohmann::json identity_of_losses(const RunIdentity& identity) {
  const bool is_vae = identity.kind == RunIdentity::Kind::vae;
  return {{"data", identity.data.is_object() ? identity.data.value("manifest", nlohmann::json()) : nlohmann::json()},
          {"model", without_idle_keys(identity.model, is_vae, /*keeps_scale=*/false)},
          {"encoders", identity.encoders}};
}

}  // namespace millrace
