#include "run/resume.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/dataset/table.h"
#include "millrace/encode/fingerprint.h"
#include "run/encoders.h"
#include "run/trained_run.h"

namespace millrace {

// Keys a restart may not change without saying so.
static const std::vector<std::string> fixed_keys = {
    "run.seed",     "objective.prediction", "batch.global", "data.train", "data.images",
    "data.stripes", "data.shuffle_block",   "transform",    "tokenizer"};

nlohmann::json run_identity(const std::string& kind, const std::string& config_yaml, const DataPlan& data,
                            const nlohmann::json& model, const std::filesystem::path& pipeline,
                            const nlohmann::json& encoders) {
  return {{"kind", kind},
          {"config", config_yaml},
          {"data",
           {{"manifest", data.manifest.digest().hex()},
            {"archives", data.manifest.archives.size()},
            {"stripes", data.stripes.stripes}}},
          {"model", model},
          {"pipeline", std::filesystem::absolute(pipeline).string()},
          {"encoders", encoders}};
}

static void refuse_no_checkpoint(const std::filesystem::path& resume) {
  std::error_code error;
  if (std::filesystem::exists(resume / run_file::manifest, error) || error) return;
  std::string there;
  for (const auto& checkpoint : list_checkpoints(resume)) there += fmt::format(" {}", checkpoint.path.string());
  throw Error(
      Exit::io, fmt::format("checkpoint.resume: {} is no checkpoint", resume.string()),
      there.empty() ? "auto, never, or a folder such as RUN/checkpoints/step-00001000" : "this run has" + there);
}

std::optional<CheckpointReader> find_start(const Group& world, const std::filesystem::path& run_dir,
                                           const std::string& resume, const std::vector<int>& trainers) {
  if (resume == "auto") return find_checkpoint(run_dir, world, {}, trainers);
  if (resume != "never") {
    on_root(world, [&] { refuse_no_checkpoint(resume); });
    return CheckpointReader::open(resume, world, trainers);
  }
  on_root(world, [&] {
    const auto there = list_checkpoints(run_dir);
    if (there.empty()) return;
    throw Error(Exit::usage,
                fmt::format("checkpoint.resume=never, but {} holds {} checkpoints", run_dir.string(), there.size()),
                "choose another run.dir, or checkpoint.resume=auto");
  });
  return std::nullopt;
}

// Whether a VAE's run gives its checkpoints the scaling_factor of model.pipeline.
static bool keeps_scaling_factor(const nlohmann::json& identity) {
  AutoencoderTrainConfig config;
  auto section = config::Section::of(config);
  (void)config::load_text(section, identity.value("config", ""), "the present configuration");
  return config.autoencoder.keeps_scaling_factor(config.model.init == ModelConfig::Init::pretrained);
}

// Archives that lie elsewhere now are the same ones when their names and sizes are, which the digest of the data says.
// Behind addresses none has a size; a list's is not that of its images, and of encodings, names and sizes are those of
// the images they were made from.
static bool may_have_moved(const nlohmann::json& identity, const Manifest& archives) {
  const auto source = readable_config(identity).data.train;
  if (source.type == SourceConfig::Type::latents) return false;
  return std::ranges::all_of(archives.archives, [&](const Archive& archive) {
    const bool holds_images = !is_table(archive.path) || (archive.path.ends_with(".parquet") && !source.columns.image);
    return archive.bytes > 0 && holds_images;
  });
}

// What made another digest of the data than `before`, in words.
static std::vector<std::string> data_changes(const CheckpointReader& checkpoint, const std::string& before,
                                             const Manifest& archives) {
  const auto file = run_of_checkpoint(checkpoint.path()) / run_file::archives;
  try {
    const auto listing = read_file(file);
    if (hash128(listing).hex() == before) return listing_changes(listing, archives.listing());
  } catch (const Error&) {
  }
  return {fmt::format("which archives differ cannot be told without the {} of that run", run_file::archives)};
}

// Of two config.json, key by key. Which version wrote the file is in keys with _, newer versions spell out what is
// null, and how large users of a VAE tile is none of its training; nor is what its latents are multiplied by, unless
// the run keeps it.
static std::vector<std::string> model_changes(nlohmann::json before, nlohmann::json after, bool is_vae,
                                              bool keeps_scale) {
  if (!before.is_object() || !after.is_object()) {
    if (before == after) return {};
    return {fmt::format("model: {} -> {}", before.dump(), after.dump())};
  }
  for (auto* const config : {&before, &after})
    for (auto entry = config->begin(); entry != config->end();) {
      const auto& key = entry.key();
      const bool is_idle = key.starts_with('_') || entry.value().is_null() ||
                           (is_vae && (key == "sample_size" || (key == "scaling_factor" && !keeps_scale)));
      entry = is_idle ? config->erase(entry) : std::next(entry);
    }
  const auto under_name = [](nlohmann::json& config) { return nlohmann::json::object({{"model", std::move(config)}}); };
  return fingerprint_differences(under_name(before), under_name(after));
}

static double rate_of_next_step(const TrainConfig& c, const RunPoint& point) {
  const auto schedule = plan_lr_schedule(c.optim, c.duration, c.batch.global);
  return learning_rate(schedule, point.step + 1, point.samples + c.batch.global);
}

std::optional<std::string> complaint_about_rate(const TrainConfig& before, const TrainConfig& now,
                                                const RunPoint& point) {
  constexpr double tolerable = 1.1;
  if (reached(now.duration, point)) return std::nullopt;
  const double usual = rate_of_next_step(before, point), rate = rate_of_next_step(now, point);
  if (std::max(usual, rate) <= tolerable * std::min(usual, rate)) return std::nullopt;
  return fmt::format("the learning rate of step {} is {:.3g}; by the settings of the checkpoint it would be {:.3g}",
                     point.step + 1, rate, usual);
}

void check_resume(const CheckpointReader& checkpoint, const std::vector<config::Change>& changes,
                  const nlohmann::json& identity, const Manifest& archives, bool allow_changes) {
  std::vector<std::string> refused;
  for (const auto& change : changes) {
    const auto text = fmt::format("{}: {} -> {}", change.key, change.before, change.after);
    const bool is_fixed =
        std::ranges::any_of(fixed_keys, [&](const std::string& key) { return config::is_in(change.key, key); });
    if (is_fixed && !(change.key == "data.train.path" && may_have_moved(identity, archives))) refused.push_back(text);
    log::info("changed since the checkpoint: {}", text);
  }
  const auto value_of = [](const nlohmann::json& json, const char* key) { return json.value(key, nlohmann::json()); };
  const auto before = value_of(checkpoint.manifest(), "data"), after = value_of(identity, "data");
  if (before != after) {
    refused.push_back(fmt::format("data: {} -> {}", before.dump(), after.dump()));
    const auto digest = before.is_object() ? before.value("manifest", "") : "";
    if (!digest.empty() && digest != archives.digest().hex())
      for (auto& change : data_changes(checkpoint, digest, archives)) refused.push_back("data: " + change);
  }
  const bool is_vae = is_of_vae(checkpoint);
  for (auto& change : model_changes(value_of(checkpoint.manifest(), "model"), value_of(identity, "model"), is_vae,
                                    is_vae && keeps_scaling_factor(identity)))
    refused.push_back(std::move(change));
  for (auto& change : encoder_changes(encoders_of(checkpoint), value_of(identity, "encoders")))
    refused.push_back(std::move(change));
  if (!refused.empty() && !allow_changes)
    throw Error(
        Exit::usage,
        fmt::format("{} was written by another setup:\n  {}", checkpoint.path().string(), fmt::join(refused, "\n  ")),
        "set these back, choose another run.dir, or say checkpoint.allow_changes=true");
  for (const auto& text : refused) log::warning("continuing although this changed: {}", text);
  const auto rates = complaint_about_rate(readable_config(checkpoint.manifest()), readable_config(identity),
                                          checkpoint.state().point());
  if (rates) log::warning("{}", *rates);
}

Places places_kept(const CheckpointReader& checkpoint, const nlohmann::json& identity) {
  if (checkpoint.manifest().value("data", nlohmann::json()) != identity.value("data", nlohmann::json()))
    return Places::none;
  const auto changes = config::diff(checkpoint.manifest().value("config", ""), readable_config(identity));
  const auto is_other = [&](std::string_view key) {
    return std::ranges::any_of(changes, [&](const config::Change& change) { return config::is_in(change.key, key); });
  };
  if (is_other("run.seed")) return Places::passes;
  // What the filters see and keep, and how much of it is shuffled together: see NOTE [Order by stripes].
  for (const char* key : {"data.shuffle_block", "data.train.filters", "data.train.columns"})
    if (is_other(key)) return Places::blocks;
  return Places::all;
}

bool has_same_batches(const CheckpointReader& checkpoint, const nlohmann::json& identity) {
  const auto batch_before = readable_config(checkpoint.manifest()).batch.global;
  return batch_before == readable_config(identity).batch.global && places_kept(checkpoint, identity) == Places::all;
}

RunState resume_state(const CheckpointReader& checkpoint, const nlohmann::json& identity) {
  RunState state = checkpoint.state();
  if (!has_same_batches(checkpoint, identity)) state.used_up.clear();  // these steps have others now
  const Places kept = places_kept(checkpoint, identity);
  if (kept == Places::all) return state;
  if (kept == Places::none) {
    log::warning(
        "the data are not those of the checkpoint: they are read from their beginning, and counted anew; samples that "
        "were used before draw the same numbers again, unless run.seed is another one");
    state.cursors.clear();
  } else if (kept == Places::passes) {
    log::warning(
        "the order of the data is not that of the checkpoint: the pass over them begins anew, so some samples of it "
        "come twice");
    for (auto& [stripe, cursor] : state.cursors) cursor = {cursor.epoch, 0, 0, 0};
  } else {
    log::warning(
        "rows are not shuffled as in the checkpoint: the blocks in work begin anew, so some of their samples come "
        "twice");
    for (auto& [stripe, cursor] : state.cursors) cursor.given = 0;
  }
  return state;
}

RunState state_with_ledger(const Start& start, const Group& trainers) {
  RunState state = start.state;
  if (start.checkpoint && !state.cursors.empty()) on_root(trainers, [&] { state.ledger = start.checkpoint->ledger(); });
  return state;
}

}  // namespace millrace
