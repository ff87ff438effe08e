#include "millrace/encode/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/config/config.h"
#include "millrace/core/hash.h"
#include "millrace/io/weights.h"
#include "millrace/nn/device.h"

namespace millrace {

using nlohmann::json;

namespace {

// Keys of a config.json that change nothing about what the network computes from given weights.
const std::vector<std::string> idle_keys = {"transformers_version", "torch_dtype",    "dtype",
                                            "architectures",        "scaling_factor", "shift_factor",
                                            "sample_size",          "force_upcast",   "use_cache"};

void add(Hasher128& hasher, std::string_view text) {
  hasher.update(text.data(), text.size());
}

std::string digest_of_tokenizer(const fs::path& folder) {
  Hasher128 hasher;
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json",
                           "special_tokens_map.json", "added_tokens.json"}) {
    std::error_code ignored;
    if (!fs::is_regular_file(folder / name, ignored)) continue;
    add(hasher, name);
    add(hasher, read_file(folder / name));
  }
  return hasher.digest().hex();
}

}  // namespace

std::string network_digest(const PipelineFolder& pipeline, std::string_view component) {
  json settings = pipeline.config(component);
  for (const auto& key : idle_keys) settings.erase(key);
  for (auto entry = settings.begin(); entry != settings.end();)
    entry = entry.key().starts_with('_') ? settings.erase(entry) : std::next(entry);
  Hasher128 hasher;
  add(hasher, settings.dump());
  const Weights weights = open_weights(pipeline.component(component), weights_stem(component));
  std::vector<std::byte> bytes;
  for (const auto& name : weights.names()) {
    const auto& info = weights.info(name);
    add(hasher, fmt::format("{} {} {}\n", name, to_string(info.dtype), json(info.shape).dump()));
    bytes.resize(info.end - info.begin);
    weights.read(name, bytes);
    hasher.update(bytes.data(), bytes.size());
  }
  return hasher.digest().hex();
}

json tokenizer_fingerprint(const PipelineFolder& pipeline, const TokenizerConfig& tokenizer) {
  return {{"model.pipeline", {{"tokenizer", digest_of_tokenizer(pipeline.component("tokenizer"))}}},
          {"tokenizer", json::parse(config::print_json(tokenizer))}};
}

json source_fingerprint(const SourceConfig& source) {
  const json keys = json::parse(config::print_json(source));
  json prompts = nullptr;
  const bool may_be_of_classes =
      source.type == SourceConfig::Type::class_labels || source.type == SourceConfig::Type::latents;
  if (may_be_of_classes && source.idx_to_prompt) prompts = hash_file(*source.idx_to_prompt).hex();
  return {{"filters", keys.at("filters")}, {"columns", keys.at("columns")}, {"idx_to_prompt", prompts}};
}

json make_fingerprint(const PipelineFolder& pipeline, const TransformConfig& transform,
                      const TokenizerConfig& tokenizer, const DataConfig& data, torch::Dtype dtype,
                      EncodeConfig::TextOn text_on) {
  json fingerprint = tokenizer_fingerprint(pipeline, tokenizer);
  json& components = fingerprint["model.pipeline"];
  components["vae"] = network_digest(pipeline, "vae");
  if (text_on == EncodeConfig::TextOn::producer) components["text_encoder"] = network_digest(pipeline, "text_encoder");
  fingerprint["transform"] = json::parse(config::print_json(transform));
  fingerprint["encode.dtype"] = dtype_name(dtype);
  fingerprint["data.train"] = source_fingerprint(data.train);
  const json images = json::parse(config::print_json(data.images));
  for (const auto& change : config::diff(config::dump_yaml(ImageConfig{}), data.images))
    fingerprint["data.images"][change.key] = images.at(change.key);
  return fingerprint;
}

std::vector<std::string> fingerprint_differences(const json& before, const json& now) {
  const json old_keys = before.flatten(), new_keys = now.flatten();
  json all = old_keys;
  all.update(new_keys);
  std::vector<std::string> differences;
  for (const auto& [pointer, value] : all.items()) {
    const auto word = [&, key = pointer](const json& keys) {
      return keys.contains(key) ? keys.at(key).dump() : "none";
    };
    if (word(old_keys) == word(new_keys)) continue;
    std::string name = pointer.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    differences.push_back(fmt::format("{}: {} -> {}", name, word(old_keys), word(new_keys)));
  }
  return differences;
}

}  // namespace millrace
