#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "export/export.h"
#include "millrace/config/config.h"
#include "millrace/core/units.h"
#include "millrace/evaluate/feature_network.h"
#include "millrace/generate/generate.h"

namespace millrace {

// Section `evaluate`: what is measured, on which pictures, with whose networks.
struct EvaluateConfig {
  enum class Metric { fid, kid, clip };
  // Settings under which others have published numbers.
  enum class Preset { custom, mlperf, mosaic };
  enum class Crop { none, center };
  using Weights = ExportRequest::Weights;  // but for `both`

  std::optional<Preset> preset = {};
  std::vector<Metric> metrics = {Metric::fid, Metric::kid, Metric::clip};
  std::optional<std::string> prompts = {};
  int count = 10000;
  std::vector<double> guidance_scales = {7.5};
  Weights weights = Weights::automatic;
  std::uint64_t seed = 0;
  int batch_size = 32;
  std::optional<std::string> features = {}, reference = {}, clip = {};
  Crop reference_crop = Crop::none;
  FeatureResize resize = FeatureResize::clean;
  std::optional<std::string> features_out = {};
  Duration patience = Duration::seconds(24 * 3600);

  void describe(config::Section& section);
  bool wants(Metric metric) const;
  bool needs_features() const { return wants(Metric::fid) || wants(Metric::kid) || features_out; }
};

const char* to_string(EvaluateConfig::Preset preset);

// Replaces the defaults by a preset's. docs/evaluation.md has the source of each number.
void set_preset(EvaluateConfig::Preset preset, EvaluateConfig& evaluate, GenerateConfig& generate);

}  // namespace millrace
