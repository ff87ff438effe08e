#pragma once
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "evaluate/evaluate_config.h"
#include "launch/session.h"
#include "millrace/evaluate/clip_score.h"
#include "millrace/evaluate/feature_network.h"
#include "millrace/evaluate/reference.h"
#include "millrace/image/image.h"

namespace millrace {

// What was measured of some pictures; what was not asked for is nothing.
struct Scores {
  std::int64_t pictures = 0;
  std::optional<double> fid{}, kid{}, kid_std{}, clip_score{};
  std::optional<double> clip_score_std{};            // of single pictures, with N - 1
  std::optional<std::int64_t> reference_pictures{};  // where the reference tells them
  torch::Tensor features{};                          // f32 (N, D), where evaluate.features_out asks for them
};

// Error naming evaluate.features_out where such a file cannot be written; nothing is left of the try.
void check_features_file(const std::filesystem::path& file);

// Pictures [begin, end) of a set.
using MakePictures = std::function<std::vector<Image>(std::int64_t begin, std::int64_t end)>;

// The networks and the reference of an evaluation, which serve for as many sets of pictures as there are.
class Scorer {
 public:
  // Loads the networks on every rank and the reference, whose pictures, if it is a folder, all ranks read together.
  // Error(usage) naming the key where a metric lacks its file or the reference lacks what it needs, or has features of
  // another width than the network. Collective.
  Scorer(const Session& session, const EvaluateConfig& config);

  // Of a set of pictures with their captions, if the CLIP score is wanted. `doing` = what making them is called on the
  // progress line. The results are rank 0's. Collective.
  Scores score(std::int64_t pictures, std::span<const std::string> captions, const std::string& doing,
               const MakePictures& make);

 private:
  FeatureReference read_reference();
  // Of a file.
  FeatureReference read_fitting_reference(const std::filesystem::path& file);
  void warn_of_few(const torch::Tensor& features);

  const Session& session_;
  const EvaluateConfig& config_;
  std::optional<FeatureNetwork> network_;
  std::optional<ClipScorer> clip_;
  std::optional<FeatureReference> reference_;  // of rank 0
  bool has_warned_of_few_ = false;
};

}  // namespace millrace
