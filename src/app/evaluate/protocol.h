#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "evaluate/evaluate_job.h"

namespace millrace {

// How a model paints, by what its files and the settings come to.
struct Painting {
  std::string sampler{};               // diffusers' class
  std::int64_t height = 0, width = 0;  // pixels
  std::string dtype{};                 // of the U-Net and the text encoder
  TokenizerConfig tokenizer{};
};

// What scores depend on beside the settings of `evaluate`.
struct ScoredModel {
  std::optional<Painting> painting{};  // none: nothing is painted
  nlohmann::ordered_json loss{};       // how it is measured; null: it is not
};

// Which sampler paints, as diffusers calls it.
std::string sampler_class(const SchedulerConfig& scheduler, const GenerateConfig& generate);

// Of a run with data.validation, by its own settings and the scheduler of its pipeline's folder.
nlohmann::ordered_json loss_protocol(const TrainConfig& trained, const SchedulerConfig& folder,
                                     const std::string& dtype);

// The files that scores depend on, by name and content, and how they are used; under the names of their keys. Reads
// them.
nlohmann::ordered_json name_contents(const EvaluateConfig& evaluate);

// Settings that make scores comparable: lines with other ones are made anew. `contents`: of name_contents. `pictures`:
// how many are scored.
nlohmann::ordered_json protocol_of(const EvaluateRoot& root, const nlohmann::ordered_json& contents,
                                   std::int64_t pictures, const ScoredModel& model);

}  // namespace millrace
