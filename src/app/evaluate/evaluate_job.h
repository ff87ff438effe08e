#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "app_config.h"
#include "evaluate/evaluate_config.h"
#include "millrace/config/config.h"
#include "millrace/text/tokenizer.h"
#include "sections.h"

namespace millrace {

// The configuration of `evaluate`.
struct EvaluateRoot {
  struct Model : PrecisionConfig {
    std::optional<std::string> pipeline;  // of a run whose folder has been moved

    void describe(config::Section& section);
  };
  // TokenizerConfig's keys, of which a run has its own.
  struct Tokenizer {
    config::Auto<TokenizerConfig::Mode> mode{};
    config::Auto<int> pad_id{};

    void describe(config::Section& section);
    bool is_set() const { return !mode.is_auto() || !pad_id.is_auto(); }
    TokenizerConfig chosen() const { return {mode.value_or(TokenizerConfig::Mode::hf), pad_id}; }
  };
  DeviceConfig run;
  Model model;
  Tokenizer tokenizer;
  GenerateConfig generate;
  EvaluateConfig evaluate;
  GuardConfig guard;
  config::Auto<int> threads{};

  void describe(config::Section& section);
  bool measures_pictures() const { return !evaluate.metrics.empty() || evaluate.features_out; }
};

// What the options say: of what there are scores, and where these go.
struct EvaluateJob {
  enum class Source { pipeline, run, images };

  Source source;
  std::filesystem::path path, out;
  bool follow = false;
  bool is_of_one_checkpoint = false;  // of a run: `path` is the checkpoint's
};

}  // namespace millrace
