#include "evaluate/protocol.h"

namespace millrace {

using Json = nlohmann::ordered_json;
using Metric = EvaluateConfig::Metric;

static void add_networks(Json& protocol, const EvaluateConfig& evaluate) {
  if (evaluate.needs_features()) {
    protocol["features"] = *evaluate.features;
    protocol["resize"] = evaluate.resize == FeatureResize::clean ? "clean" : "legacy";
  }
  if (evaluate.reference && evaluate.needs_features()) protocol["reference"] = *evaluate.reference;
  if (evaluate.wants(Metric::clip)) protocol["clip"] = *evaluate.clip;
}

static void add_painting(Json& protocol, const GenerateConfig& generate) {
  const auto pixels = [](const config::Auto<int>& side) { return side.is_auto() ? Json("auto") : Json(*side.value); };
  protocol["steps"] = generate.steps;
  protocol["sampler"] = generate.sampler ? to_string(*generate.sampler) : "the model's";
  protocol["size"] = {pixels(generate.height), pixels(generate.width)};
  protocol["guidance_rescale"] = generate.guidance_rescale;
  protocol["negative_prompt"] = generate.negative_prompt;
}

Json protocol_of(const EvaluateRoot& root, EvaluateJob::Source source, std::int64_t painted) {
  const auto& evaluate = root.evaluate;
  Json protocol = {{"preset", to_string(evaluate.preset.value_or(EvaluateConfig::Preset::custom))}};
  add_networks(protocol, evaluate);
  if (evaluate.prompts) protocol["prompts"] = *evaluate.prompts;
  for (const auto metric : evaluate.metrics)
    protocol["metrics"].push_back(metric == Metric::fid ? "fid" : metric == Metric::kid ? "kid" : "clip");
  if (source == EvaluateJob::Source::images || !root.measures_pictures()) return protocol;
  protocol["count"] = painted;
  protocol["seed"] = evaluate.seed;
  protocol["batch_size"] = evaluate.batch_size;
  add_painting(protocol, root.generate);
  protocol["dtype"] = root.model.dtype;
  // Only what somebody chose: lines of before say nothing of it.
  for (const auto& change : config::diff(config::dump_yaml(TokenizerConfig{}), root.tokenizer))
    protocol["tokenizer"][change.key] = change.after;
  return protocol;
}

}  // namespace millrace
