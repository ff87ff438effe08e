#include "run/encoders.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/core/storage_error.h"
#include "millrace/encode/fingerprint.h"
#include "millrace/models/autoencoder_kl.h"
#include "run/identity.h"
#include "run/trained_run.h"

namespace millrace {

using nlohmann::json;

json describe_scales(const PipelineFolder& folder, const SchedulerConfig& scheduler) {
  const auto vae = AutoencoderKLConfig::from_json(folder.config("vae"));
  const auto noise = scheduler.to_json();
  json scales = {{"vae", {{"scaling_factor", vae.scaling_factor}, {"shift_factor", vae.shift_factor.value_or(0)}}}};
  for (const char* key : {"num_train_timesteps", "beta_start", "beta_end", "beta_schedule"})
    scales["scheduler"][key] = noise.value(key, json());
  scales["scheduler"]["trained_betas"] = noise.value("trained_betas", json()).dump();
  scales["scheduler"]["rescale_betas_zero_snr"] = noise.value("rescale_betas_zero_snr", false);
  return scales;
}

template <class Digest>
static json null_without_files(const Digest& digest) {
  try {
    return digest();
  } catch (const StorageError&) {
    throw;
  } catch (const Error&) {
    return nullptr;
  }
}

json digest_if_there(const PipelineFolder& folder, const char* component) {
  return null_without_files([&]() -> json { return network_digest(folder, component); });
}

json tokenizer_digest_if_there(const PipelineFolder& folder) {
  return null_without_files([&] { return tokenizer_fingerprint(folder, {}).at("model.pipeline").at("tokenizer"); });
}

// What the latent cache was made with that was trained on; null where there was none. Taken out of `encoders`.
static json take_cache(json& encoders) {
  const auto data = encoders.find("data.train");
  if (data == encoders.end() || !data->contains("cache")) return nullptr;
  json made_with = data->at("cache");
  data->erase("cache");
  return made_with;
}

std::vector<EncoderChange> encoder_changes(json before, json after) {
  if (!before.is_object() || !after.is_object()) return {};
  std::vector<EncoderChange> changes;
  // Of two caches all counts, also what only one of them was made with. A run that encoded by itself had none.
  const auto cache_before = take_cache(before), cache_after = take_cache(after);
  if (!cache_before.is_null() && !cache_after.is_null())
    for (const auto& change : fingerprint_differences(cache_before, cache_after))
      changes.push_back({"data.train.path", fmt::format("data.train.path: the cache was made with {}", change)});
  const auto known = before.flatten(), present = after.flatten();
  for (const auto& [pointer, value] : present.items()) {
    const auto old = known.value(pointer, json());
    if (old.is_null() || value.is_null() || old == value) continue;
    auto part = pointer.substr(1);
    std::ranges::replace(part, '/', '.');
    const auto* const where = part.starts_with("data.") ? "" : "model.pipeline: ";
    const auto text = fmt::format("{}{}: {} -> {}", where, part, old.dump(), value.dump());
    changes.push_back({part, text});
  }
  return changes;
}

// A run on a latent cache may have had another folder than the cache, which it was warned about.
static void warn_of_other_parts_of_cache(const CheckpointReader& checkpoint, const json& known,
                                         const PipelineFolder& folder) {
  const auto parts = known.value(json::json_pointer("/data.train/cache/model.pipeline"), json::object());
  for (const auto& [part, digest] : parts.items()) {
    const json now = part == "tokenizer" ? tokenizer_digest_if_there(folder) : digest_if_there(folder, part.c_str());
    if (now.is_null() || now == digest) continue;
    log::warning("the latents that {} was trained on were made with another {} than that of {}",
                 checkpoint.path().string(), part, folder.path().string());
  }
}

void check_encoders(const CheckpointReader& checkpoint, const PipelineFolder& folder, bool allow_changes,
                    const std::string& way_out) {
  const auto known = RunIdentity::from_manifest(checkpoint.manifest()).encoders;
  if (!known.is_object()) return;
  const auto holds = [&](const char* pointer) {
    const json::json_pointer place(pointer);
    return known.contains(place) && !known.at(place).is_null();
  };
  auto present = describe_scales(folder, trained_scheduler(folder.scheduler(), trained_config(checkpoint).objective));
  if (holds("/vae/weights")) present["vae"]["weights"] = digest_if_there(folder, "vae");
  if (holds("/text_encoder/weights")) present["text_encoder"]["weights"] = digest_if_there(folder, "text_encoder");
  if (holds("/tokenizer/files")) present["tokenizer"]["files"] = tokenizer_digest_if_there(folder);
  const auto changes = encoder_changes(known, present);
  // Tokenizers are known by their files, which newer libraries write in other words with the same ids.
  const bool is_other =
      std::ranges::any_of(changes, [](const EncoderChange& change) { return !change.part.starts_with("tokenizer."); });
  std::vector<std::string> texts;
  std::ranges::transform(changes, std::back_inserter(texts), &EncoderChange::text);
  if (is_other && !allow_changes)
    throw Error(Exit::usage,
                fmt::format("{} was trained with other parts than {} has now:\n  {}", checkpoint.path().string(),
                            folder.path().string(), fmt::join(texts, "\n  ")),
                way_out);
  for (const auto& text : texts)
    log::warning("the U-Net of {} goes with a part that it was not trained with: {}", checkpoint.path().string(), text);
  warn_of_other_parts_of_cache(checkpoint, known, folder);
}

}  // namespace millrace
