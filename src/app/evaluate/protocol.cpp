#include "evaluate/protocol.h"

#include <fmt/format.h>

#include <utility>

#include "evaluate/content_name.h"
#include "millrace/core/error.h"
#include "millrace/core/secrets.h"

namespace millrace {

using Json = nlohmann::ordered_json;
using Metric = EvaluateConfig::Metric;

std::string sampler_class(const SchedulerConfig& scheduler, const GenerateConfig& generate) {
  return generate.sampler ? scheduler.with_class(*generate.sampler).class_name() : scheduler.class_name();
}

// Only what somebody chose.
template <class Config>
static void add_choices(Json& protocol, const char* name, const Config& section) {
  for (const auto& change : config::diff(config::dump_yaml(Config{}), section))
    protocol[name][change.key] = without_secrets(change.after);
}

Json loss_protocol(const TrainConfig& trained, const SchedulerConfig& folder, const std::string& dtype) {
  const auto& objective = trained.objective;
  Json protocol = {{"data", Json::object()},
                   {"samples", std::int64_t{trained.validation.batches} * trained.batch.global},
                   {"resolution", trained.transform.resolution},
                   {"prediction", to_string(objective.prediction)},
                   {"snr_gamma", objective.snr_gamma ? Json(*objective.snr_gamma) : Json(nullptr)},
                   {"noise_offset", objective.noise_offset},
                   {"zero_terminal_snr", trained_scheduler(folder, objective).rescale_betas_zero_snr},
                   {"dtype", dtype}};
  add_choices(protocol, "data", *trained.data.validation);
  auto transform = trained.transform;
  transform.resolution = TransformConfig{}.resolution;  // stands above
  add_choices(protocol, "transform", transform);
  add_choices(protocol, "images", trained.data.images);
  add_choices(protocol, "tokenizer", trained.tokenizer);
  return protocol;
}

static bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

using NameContent = std::string (*)(const std::filesystem::path&);

// Errors name the key.
static std::string name_content(const char* key, const std::string& path, NameContent name) {
  return with_key(fmt::format("evaluate.{}", key), [&] { return name(path); });
}

static void add_reference(Json& contents, const EvaluateConfig& evaluate) {
  const auto& path = *evaluate.reference;
  if (!is_folder(path)) {
    contents["reference"] = name_content("reference", path, content_name_of_file);
    return;
  }
  contents["reference"] = name_content("reference", path, content_name_of_images);
  contents["reference_crop"] = evaluate.reference_crop == EvaluateConfig::Crop::center ? "center" : "none";
}

Json name_contents(const EvaluateConfig& evaluate) {
  Json contents = Json::object();
  if (evaluate.needs_features()) {
    contents["features"] = name_content("features", *evaluate.features, content_name_of_file);
    contents["resize"] = evaluate.resize == FeatureResize::clean ? "clean" : "legacy";
  }
  if (evaluate.reference && (evaluate.wants(Metric::fid) || evaluate.wants(Metric::kid)))
    add_reference(contents, evaluate);
  if (evaluate.wants(Metric::clip)) contents["clip"] = name_content("clip", *evaluate.clip, content_name_of_network);
  if (evaluate.prompts) contents["prompts"] = name_content("prompts", *evaluate.prompts, content_name_of_file);
  return contents;
}

static void add_painting(Json& protocol, const EvaluateRoot& root, const Painting& painting) {
  const auto& generate = root.generate;
  protocol["batch_size"] = root.evaluate.batch_size;
  protocol["steps"] = generate.steps;
  protocol["sampler"] = painting.sampler;
  protocol["size"] = {painting.height, painting.width};
  protocol["guidance_rescale"] = generate.guidance_rescale;
  protocol["negative_prompt"] = generate.negative_prompt;
  protocol["dtype"] = painting.dtype;
  add_choices(protocol, "tokenizer", painting.tokenizer);
}

static const char* to_string(Metric metric) {
  switch (metric) {
    case Metric::fid:
      return "fid";
    case Metric::kid:
      return "kid";
    case Metric::clip:
      return "clip";
  }
  ensure(false, "every metric has a name");
  return "";
}

Json protocol_of(const EvaluateRoot& root, const Json& contents, std::int64_t pictures, const ScoredModel& model) {
  const auto& evaluate = root.evaluate;
  Json protocol = {{"preset", to_string(evaluate.preset.value_or(EvaluateConfig::Preset::custom))}};
  protocol.update(contents);
  for (const auto metric : evaluate.metrics) protocol["metrics"].push_back(to_string(metric));
  if (root.measures_pictures()) {
    protocol["count"] = pictures;
    protocol["seed"] = evaluate.seed;  // of KID's subsets, too
  }
  if (model.painting) add_painting(protocol, root, *model.painting);
  if (!model.loss.is_null()) protocol["loss"] = model.loss;
  return protocol;
}

}  // namespace millrace
