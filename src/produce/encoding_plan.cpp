#include "millrace/produce/encoding_plan.h"

#include <fmt/ranges.h>

#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/log.h"
#include "millrace/encode/fingerprint.h"

namespace millrace {
namespace {

using nlohmann::json;

using TextOn = EncodeConfig::TextOn;

std::int64_t text_width_of(const PipelineFolder& pipeline) {
  return CLIPTextConfig::from_json(pipeline.config("text_encoder")).hidden_size;
}

EncodingShape shape_of_pipeline(const ProducerConfig& config, const PipelineFolder& pipeline) {
  const auto vae = AutoencoderKLConfig::from_json(pipeline.config("vae"));
  if (config.transform.resolution % vae.factor() != 0)
    throw Error(Exit::usage, fmt::format("transform.resolution: {} is not a multiple of the VAE's factor {}",
                                         config.transform.resolution, vae.factor()));
  const auto side = config.transform.resolution / vae.factor();
  EncodingShape shape{{2 * vae.latent_channels, side, side}, {token_count}};
  if (config.encode.text_on == TextOn::producer) shape.text.push_back(text_width_of(pipeline));
  return shape;
}

// Encodings that are read must hold what encode.text_on wants of captions.
void check_text_on(const std::string& path, bool has_tokens, TextOn text_on) {
  if (has_tokens == (text_on == TextOn::trainer)) return;
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

// Trainers make the empty caption's tokens themselves, so these must come from the tokenizer that made the others.
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

// What is trained at 512 px must not be latents of 256 px by mistake: pictures and the exported folder would say 512.
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

// A complete cache has its rows and captions already: another choice of them would have no effect.
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

// A caption that holds one of them ends the run, which may be days from now.
void warn_of_unknown_tokens(const ProducerConfig& config, const PipelineFolder& pipeline) {
  const auto tokens = ClipTokenizer::load(pipeline.component("tokenizer"), config.tokenizer).vocabulary_size();
  const auto known = CLIPTextConfig::from_json(pipeline.config("text_encoder")).vocab_size;
  if (tokens > known)
    log::warning(
        "{}: the tokenizer has {} tokens, and the text encoder knows {}: a caption with another one ends the run",
        pipeline.path().string(), tokens, known);
}

// Latents without encoders: the pipeline still says how they are scaled, so a foreign VAE deserves a word.
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

// What has become part of the latents when they were made.
void warn_of_idle_keys(const ProducerConfig& config) {
  const auto changes = config::diff(config::dump_yaml(TransformConfig{}), config.transform);
  for (const auto& change : changes)
    if (change.key != "resolution")
      log::warning("transform.{}={} has no effect: the latents in {} are as they were made", change.key, change.after,
                   config.data.train.path[0]);
}

}  // namespace

LatentTableOptions latent_table_options(const ProducerConfig& config, const PipelineFolder& pipeline,
                                        const EncodingShape& shape) {
  const auto vae = AutoencoderKLConfig::from_json(pipeline.config("vae"));
  return {shape, config.transform.resolution, vae.scaling_factor, vae.shift_factor.value_or(0)};
}

namespace {

EncodingPlan plan_encoding(const ProducerConfig& config, const PipelineFolder& pipeline, const Manifest& manifest,
                           torch::Dtype dtype) {
  const auto text_on = config.encode.text_on;
  EncodingPlan plan;
  if (config.data.train.type == SourceConfig::Type::latents) {
    plan.encodes = false;
    if (is_latent_parquet(config.data.train)) {
      check_text_on(config.data.train.path.at(0), /*has_tokens=*/false, text_on);
      plan.shape = shape_of_pipeline(config, pipeline);
      check_latent_tables(config.data.train, manifest, latent_table_options(config, pipeline, plan.shape));
      return plan;
    }
    plan.cache = config.data.train.path.at(0);
    const auto description = read_cache_description(*plan.cache);
    plan.shape = description.shape;
    check_text_on(plan.cache->string(), plan.shape.has_tokens(), text_on);
    if (plan.shape.has_tokens()) {
      if (plan.shape.text[0] != token_count)
        fail(Exit::usage, "{} holds {} token ids a caption, the text encoder takes {}", plan.cache->string(),
             plan.shape.text[0], token_count);
      check_tokenizer(plan.cache->string(), description.fingerprint, config, pipeline);
    }
    check_resolution(plan.cache->string(), plan.shape, config, pipeline);
    check_choice_of_rows(plan.cache->string(), description.fingerprint, config.data.train);
    warn_of_other_encoders(description.fingerprint, config, pipeline, dtype);
    warn_of_idle_keys(config);
    return plan;
  }
  plan.shape = shape_of_pipeline(config, pipeline);
  warn_of_unknown_tokens(config, pipeline);
  if (!config.encode.cache) return plan;
  plan.cache = *config.encode.cache;
  plan.fingerprint = make_fingerprint(pipeline, config.transform, config.tokenizer, config.data, dtype, text_on);
  if (is_latent_cache(*plan.cache)) {
    const auto description = read_cache_description(*plan.cache);
    check_text_on(plan.cache->string(), description.shape.has_tokens(), text_on);
    check_fingerprint(*plan.cache, description.fingerprint, plan.fingerprint);
  }
  return plan;
}

}  // namespace

EncodingPlan broadcast_encoding_plan(const Group& world, const ProducerConfig& config, const PipelineFolder& pipeline,
                                     const Manifest& manifest, torch::Dtype dtype) {
  EncodingPlan plan;
  on_root(world, [&] {
    plan = plan_encoding(config, pipeline, manifest, dtype);
    plan.text_width = plan.shape.has_tokens() ? text_width_of(pipeline) : plan.shape.text[1];
  });
  const json mine = {{"moments", plan.shape.moments},
                     {"text", plan.shape.text},
                     {"text_width", plan.text_width},
                     {"encodes", plan.encodes},
                     {"cache", plan.cache ? json(plan.cache->string()) : json(nullptr)},
                     {"fingerprint", plan.fingerprint}};
  const json shared = json::from_cbor(world.broadcast([&] {
    std::string bytes;
    json::to_cbor(mine, bytes);
    return bytes;
  }()));
  plan.shape = {shared.at("moments"), shared.at("text")};
  plan.text_width = shared.at("text_width");
  plan.encodes = shared.at("encodes");
  if (!shared.at("cache").is_null()) plan.cache = shared.at("cache").get<std::string>();
  plan.fingerprint = shared.at("fingerprint");
  return plan;
}

std::string describe(const EncodingPlan& plan) {
  auto text = fmt::format("moments {} and {} {}, ", fmt::join(plan.shape.moments, " x "), plan.shape.text_name(),
                          fmt::join(plan.shape.text, " x "));
  if (!plan.cache) return text + (plan.encodes ? "made while training" : "read from Parquet files");
  text += "read from " + plan.cache->string();
  return plan.encodes ? text + ", the missing ones made and added" : text;
}

void check_cache(const EncodingPlan& plan) {
  check_fingerprint(*plan.cache, read_cache_description(*plan.cache).fingerprint, plan.fingerprint);
}

void begin_cache(const EncodingPlan& plan, const torch::Tensor& null_text) {
  if (!plan.encodes || !plan.cache) return;
  clear_latent_scratch(*plan.cache);
  CacheDescription description{plan.fingerprint, plan.shape, {}};
  if (null_text.defined()) {
    const auto* values = static_cast<const std::uint16_t*>(null_text.const_data_ptr());
    description.null_text.assign(values, values + null_text.numel());
  }
  write_cache_description(*plan.cache, description);
  check_cache(plan);
}

}  // namespace millrace
