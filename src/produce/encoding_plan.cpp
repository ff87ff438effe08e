#include "millrace/produce/encoding_plan.h"

#include <fmt/ranges.h>

#include "encoding_checks.h"
#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/encode/fingerprint.h"
#include "millrace/latents/changed_archives.h"
#include "millrace/latents/latent_cache.h"

namespace millrace {
namespace {

using nlohmann::json;

std::int64_t text_width_of(const PipelineFolder& pipeline) {
  return CLIPTextConfig::from_json(pipeline.config("text_encoder")).hidden_size;
}

EncodingShape shape_of_pipeline(const ProducerConfig& config, const PipelineFolder& pipeline) {
  const auto vae = AutoencoderKLConfig::from_json(pipeline.config("vae"));
  const auto side = vae.latent_side(config.transform.resolution);
  EncodingShape shape{{2 * vae.latent_channels, side, side}, {token_count}};
  if (config.encode.text_on == EncodeConfig::TextOn::producer) shape.text.push_back(text_width_of(pipeline));
  return shape;
}

}  // namespace

LatentTableOptions latent_table_options(const ProducerConfig& config, const PipelineFolder& pipeline,
                                        const EncodingShape& shape) {
  const auto vae = AutoencoderKLConfig::from_json(pipeline.config("vae"));
  return {shape, config.transform.resolution, vae.scaling_factor, vae.shift_factor.value_or(0)};
}

namespace {

EncodingPlan plan_of_tables(const ProducerConfig& config, const PipelineFolder& pipeline, const Manifest& manifest) {
  EncodingPlan plan;
  plan.encodes = false;
  check_text_on(config.data.train.path.at(0), /*has_tokens=*/false, config.encode.text_on);
  plan.shape = shape_of_pipeline(config, pipeline);
  check_latent_tables(config.data.train, manifest, latent_table_options(config, pipeline, plan.shape));
  return plan;
}

// A complete one, that nothing is added to.
EncodingPlan plan_of_cache(const ProducerConfig& config, const PipelineFolder& pipeline, torch::Dtype dtype) {
  EncodingPlan plan;
  plan.encodes = false;
  plan.cache = config.data.train.path.at(0);
  const auto description = read_cache_description(*plan.cache);
  plan.shape = description.shape;
  check_text_on(plan.cache->string(), plan.shape.has_tokens(), config.encode.text_on);
  if (plan.shape.has_tokens()) {
    if (plan.shape.text[0] != token_count)
      fail(Exit::usage, "{} holds {} token ids a caption, the text encoder takes {}", plan.cache->string(),
           plan.shape.text[0], token_count);
    check_positions(pipeline);
    check_tokenizer(plan.cache->string(), description.fingerprint, config, pipeline);
  }
  check_resolution(plan.cache->string(), plan.shape, config, pipeline);
  check_choice_of_rows(plan.cache->string(), description.fingerprint, config.data.train);
  warn_of_other_encoders(description.fingerprint, config, pipeline, dtype);
  warn_of_idle_keys(config);
  return plan;
}

EncodingPlan plan_of_images(const ProducerConfig& config, const PipelineFolder& pipeline, const Manifest& manifest,
                            torch::Dtype dtype) {
  const auto text_on = config.encode.text_on;
  EncodingPlan plan;
  plan.shape = shape_of_pipeline(config, pipeline);
  check_positions(pipeline);
  warn_of_unknown_tokens(config, pipeline);
  if (!config.encode.cache) return plan;
  plan.cache = *config.encode.cache;
  plan.fingerprint = make_fingerprint(pipeline, config.transform, config.tokenizer, config.data, dtype, text_on);
  if (is_latent_cache(*plan.cache)) {
    const auto description = read_cache_description(*plan.cache);
    check_text_on(plan.cache->string(), description.shape.has_tokens(), text_on);
    check_fingerprint(*plan.cache, description.fingerprint, plan.fingerprint);
    check_archives(*plan.cache, manifest, StorageRetry::Seconds(config.data.retry_for.count));
  }
  return plan;
}

EncodingPlan plan_encoding(const ProducerConfig& config, const PipelineFolder& pipeline, const Manifest& manifest,
                           torch::Dtype dtype) {
  if (config.data.train.type != SourceConfig::Type::latents) return plan_of_images(config, pipeline, manifest, dtype);
  if (is_latent_parquet(config.data.train)) return plan_of_tables(config, pipeline, manifest);
  return plan_of_cache(config, pipeline, dtype);
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
  if (plan.reads_tables()) return text + "read from Parquet files";
  if (!plan.cache) return text + "made while training";
  text += "read from " + plan.cache->string();
  return plan.adds_to_cache() ? text + ", the missing ones made and added" : text;
}

void check_cache(const EncodingPlan& plan) {
  check_fingerprint(*plan.cache, read_cache_description(*plan.cache).fingerprint, plan.fingerprint);
}

void clear_leftovers(const EncodingPlan& plan) {
  if (plan.adds_to_cache()) clear_latent_scratch(*plan.cache);
}

void begin_cache(const EncodingPlan& plan, const torch::Tensor& null_text) {
  if (!plan.adds_to_cache()) return;
  CacheDescription description{plan.fingerprint, plan.shape, {}};
  if (null_text.defined()) {
    const auto* values = static_cast<const std::uint16_t*>(null_text.const_data_ptr());
    description.null_text.assign(values, values + null_text.numel());
  }
  write_cache_description(*plan.cache, description);
  check_cache(plan);
}

}  // namespace millrace
