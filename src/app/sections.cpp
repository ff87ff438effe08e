#include "sections.h"

#include "app_config.h"

namespace millrace {

void ignore_other_sections(config::Section& root) {
  static constexpr const char* names[] = {
      "run",       "model",    "data",     "transform", "tokenizer",   "encode",   "roles",      "batch",  "duration",
      "objective", "optim",    "ema",      "parallel",  "checkpoint",  "samples",  "validation", "log",    "record",
      "guard",     "download", "generate", "bench",     "autoencoder", "evaluate", "plan",       "threads"};
  std::vector<std::string> others;
  for (const char* name : names)
    if (!root.find(name)) others.push_back(name);
  root.ignore(others);
}

void describe_threads(config::Section& root, config::Auto<int>& threads) {
  root.key("threads", threads, "of each rank; auto = the CPUs its host's ranks may use, shared out to them")
      .at_least(1);
}

void describe_hang_guard(config::Section& root, GuardConfig& guard) {
  root.section("guard", guard, "what to do when a rank hangs").keep({"hang_timeout"});
}

void DeviceConfig::describe(config::Section& section) {
  section.key("device", device, "auto, cpu or cuda").one_of({"auto", "cpu", "cuda"});
  section.ignore_rest_of<RunConfig>();
}

void ignore_models_of_trainings(config::Section& model) {
  model.ignore_rest_of<ModelConfig>();
  model.ignore_rest_of<AutoencoderTrainConfig::Model>();
}

void PrecisionConfig::describe(config::Section& section) {
  section.key("dtype", dtype, "auto = bfloat16 on CUDA, float32 on the CPU")
      .one_of({"auto", "float32", "bfloat16", "float16"});
  ignore_models_of_trainings(section);
}

void describe_moved_pipeline(config::Section& model, std::optional<std::string>& pipeline) {
  model
      .key("pipeline", pipeline,
           "on the command line: where the folder lies now that the run was trained with; null = where it was then")
      .skip_missing();
}

std::optional<std::string> typed_pipeline(const config::Report& report, const std::optional<std::string>& pipeline) {
  return report.is_typed("model.pipeline") ? pipeline : std::nullopt;
}

}  // namespace millrace
