#include "encoding_checks.h"

#include <fmt/ranges.h>

#include <system_error>
#include <tuple>

#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/encode/fingerprint.h"
#include "millrace/io/json.h"

namespace millrace {

using nlohmann::json;

void check_text_on(const std::string& path, bool has_tokens, EncodeConfig::TextOn text_on) {
  if (has_tokens == (text_on == EncodeConfig::TextOn::trainer)) return;
  const auto [now, then, holds] = has_tokens ? std::tuple("producer", "trainer", "token ids")
                                             : std::tuple("trainer", "producer", "text embeddings");
  throw Error(Exit::usage, fmt::format("encode.text_on={}: {} holds {}", now, path, holds),
              fmt::format("set encode.text_on={}, or choose another cache", then));
}

void check_fingerprint(const std::filesystem::path& cache, const json& made_with, const json& present) {
  const auto differences = fingerprint_differences(made_with, present);
  if (differences.empty()) return;
  throw Error(Exit::usage,
              fmt::format("encode.cache: the latents in {} were made in another way:\n  {}", cache.string(),
                          fmt::join(differences, "\n  ")),
              "set these back, or choose another encode.cache");
}

void check_tokenizer(const std::string& cache, const json& made_with, const ProducerConfig& config,
                     const PipelineFolder& pipeline) {
  const auto present = tokenizer_fingerprint(pipeline, config.tokenizer);
  const json keys = present.flatten();
  auto before = present;
  for (const auto& [pointer, value] : keys.items()) {
    const json::json_pointer place(pointer);
    before[place] = made_with.contains(place) ? made_with.at(place) : json();
  }
  const auto differences = fingerprint_differences(before, present);
  if (differences.empty()) return;
  throw Error(Exit::usage,
              fmt::format("{} holds token ids of another tokenizer:\n  {}", cache, fmt::join(differences, "\n  ")),
              "set these back, or encode.text_on=producer with another cache");
}

void check_resolution(const std::string& cache, const EncodingShape& shape, const ProducerConfig& config,
                      const PipelineFolder& pipeline) {
  const auto factor = AutoencoderKLConfig::from_json(pipeline.config("vae")).factor();
  const auto height = factor * shape.moments[1], width = factor * shape.moments[2];
  if (height == config.transform.resolution && width == config.transform.resolution) return;
  throw Error(
      Exit::usage,
      fmt::format("transform.resolution: {}, but {} holds latents of {} x {} pixels", config.transform.resolution,
                  cache, width, height),
      fmt::format("set transform.resolution={} (a run that has begun wants checkpoint.allow_changes=true with it), or "
                  "choose a cache that was made at {}",
                  width, config.transform.resolution));
}

void check_choice_of_rows(const std::string& cache, const json& made_with, const SourceConfig& source) {
  const json wanted = source_fingerprint(source), defaults = source_fingerprint({});
  json before = made_with.value("data.train", defaults), after = before;
  if (wanted.at("filters") != defaults.at("filters")) after["filters"] = wanted.at("filters");
  if (wanted.at("idx_to_prompt") != defaults.at("idx_to_prompt")) after["idx_to_prompt"] = wanted.at("idx_to_prompt");
  for (const auto& [column, name] : wanted.at("columns").items())
    if (name != defaults.at("columns").at(column)) after["columns"][column] = name;
  for (json* keys : {&before, &after})
    if (keys->at("filters").empty()) keys->erase("filters");
  const auto differences =
      fingerprint_differences(json::object({{source.section, before}}), json::object({{source.section, after}}));
  if (differences.empty()) return;
  throw Error(
      Exit::usage,
      fmt::format("{}: the latents in {} were chosen in another way:\n  {}", source.section, cache,
                  fmt::join(differences, "\n  ")),
      "leave these keys out (a run that has begun wants checkpoint.allow_changes=true with it), or make another "
      "cache with them");
}

// Programs that load the exported folder pad and cut captions to this length, and the U-Net attends to the padding.
// transformers writes 1e30 where there is none.
static void warn_of_caption_length(const PipelineFolder& pipeline) {
  if (!pipeline.has("tokenizer")) return;
  const auto file = pipeline.component("tokenizer") / "tokenizer_config.json";
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return;
  const auto settings = read_json_object(file);
  const auto length = settings.find("model_max_length");
  if (length == settings.end() || !length->is_number_integer()) return;
  if (length->get<std::int64_t>() == token_count) return;
  log::warning(
      "model.pipeline: {}: model_max_length = {}, and captions are {} tokens here: diffusers would give the trained "
      "U-Net text of another length",
      file.string(), length->dump(), token_count);
}

void check_positions(const PipelineFolder& pipeline) {
  const auto positions = CLIPTextConfig::from_json(pipeline.config("text_encoder")).max_position_embeddings;
  if (positions >= token_count) return warn_of_caption_length(pipeline);
  throw Error(
      Exit::usage,
      fmt::format("model.pipeline: the text encoder has max_position_embeddings = {}, and captions are {} tokens",
                  positions, token_count),
      "CLIP's text encoders have 77");
}

void warn_of_unknown_tokens(const ProducerConfig& config, const PipelineFolder& pipeline) {
  const auto tokens = ClipTokenizer::load(pipeline.component("tokenizer"), config.tokenizer).vocabulary_size();
  const auto known = CLIPTextConfig::from_json(pipeline.config("text_encoder")).vocab_size;
  if (tokens > known)
    log::warning(
        "{}: the tokenizer has {} tokens, and the text encoder knows {}: a caption with another one ends the run",
        pipeline.path().string(), tokens, known);
}

void warn_of_other_encoders(const json& made_with, const ProducerConfig& config, const PipelineFolder& pipeline,
                            torch::Dtype dtype) {
  json present;
  try {
    present = make_fingerprint(pipeline, config.transform, config.tokenizer, config.data, dtype, config.encode.text_on);
  } catch (const Error&) {
    return;  // a pipeline without the encoders' weights is all that such a run needs
  }
  for (const char* name : {"vae", "text_encoder", "tokenizer"}) {
    const auto pointer = json::json_pointer(fmt::format("/model.pipeline/{}", name));
    if (made_with.contains(pointer) && made_with.at(pointer) != present.at(pointer))
      log::warning("the latents in {} were made by another {} than that of model.pipeline", config.data.train.path[0],
                   name);
  }
}

void warn_of_idle_keys(const ProducerConfig& config) {
  const auto changes = config::diff(config::dump_yaml(TransformConfig{}), config.transform);
  for (const auto& change : changes)
    if (change.key != "resolution")
      log::warning("transform.{}={} has no effect: the latents in {} are as they were made", change.key, change.after,
                   config.data.train.path[0]);
}

}  // namespace millrace
