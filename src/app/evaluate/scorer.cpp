#include "evaluate/scorer.h"

#include <algorithm>
#include <utility>

#include "evaluate/image_folder.h"
#include "launch/picture_units.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/image/decode.h"
#include "millrace/image/resize_image.h"

namespace millrace {

using Metric = EvaluateConfig::Metric;

void check_features_file(const fs::path& file) {
  with_key("evaluate.features_out", [&] {
    if (fs::is_directory(file)) fail(Exit::usage, "{} is a folder", file.string());
    const AtomicFile attempt(file);
  });
}

static Image middle_square(const Image& image) {
  const int side = std::min(image.width, image.height);
  return crop_center(image, side, side);
}

Scorer::Scorer(const Session& session, const EvaluateConfig& config) : session_(session), config_(config) {
  const auto& world = session.world.group();
  on_all(world, [&] {
    if (config.needs_features())
      network_.emplace(FeatureNetwork::load(*config.features, config.resize, session.device));
    if (config.wants(Metric::clip)) clip_.emplace(ClipScorer::load(*config.clip, session.device));
  });
  if (config.wants(Metric::fid) || config.wants(Metric::kid)) reference_ = read_reference();
}

// Complete on rank 0 alone.
FeatureReference Scorer::read_reference() {
  const auto& world = session_.world.group();
  const fs::path path = *config_.reference;
  FeatureReference reference;
  const bool crops = config_.reference_crop == EvaluateConfig::Crop::center;
  if (!fs::is_directory(path)) {
    if (crops && config_.preset != EvaluateConfig::Preset::mosaic && session_.is_root())  // nobody chose it there
      log::warning("evaluate.reference_crop=center is for a folder of images: what {} holds stays as it is",
                   path.string());
    on_root(world, [&] { reference = read_fitting_reference(path); });
    return reference;
  }
  const auto files = on_all(world, [&] { return list_images(path); });
  const PictureUnits units{std::ssize(files), config_.batch_size};
  std::vector<torch::Tensor> rows;
  for_each_unit(session_, units, "reference pictures", [&](std::int64_t begin, std::int64_t end) {
    std::vector<Image> images;
    for (auto i = begin; i < end; ++i) {
      auto image = read_image(files[static_cast<std::size_t>(i)]);
      images.push_back(crops ? middle_square(image) : std::move(image));
    }
    rows.push_back(network_->features(images));
  });
  const auto features = gather_rows(world, units, rows);
  on_root(world, [&] {
    if (features.size(0) < 2) fail(Exit::usage, "evaluate.reference: {} holds one picture alone", path.string());
    reference = {features, statistics_of(features)};
  });
  return reference;
}

FeatureReference Scorer::read_fitting_reference(const fs::path& file) {
  auto reference = read_reference_file(file);
  if (config_.wants(Metric::kid) && !reference.features)
    throw Error(Exit::usage,
                fmt::format("evaluate.reference: KID needs features, and {} has statistics alone", file.string()),
                "give a folder of images, .npz with feats or .safetensors with features, or leave kid out of "
                "evaluate.metrics");
  const auto width = reference.statistics.mean.size(0), given = network_->width();
  if (given != width)
    fail(Exit::usage, "evaluate.reference has {} features, and the network of evaluate.features gives {}", width,
         given);
  return reference;
}

// Once, not for each checkpoint and scale.
void Scorer::warn_of_few(const torch::Tensor& features) {
  if (features.size(0) >= features.size(1) || std::exchange(has_warned_of_few_, true)) return;
  log::warning(
      "FID of {} pictures with {} features is far too high, and the higher the fewer they are: compare equal counts "
      "alone, or use kid",
      features.size(0), features.size(1));
}

Scores Scorer::score(std::int64_t pictures, std::span<const std::string> captions, const std::string& doing,
                     const MakePictures& make) {
  const auto& world = session_.world.group();
  const PictureUnits units{pictures, config_.batch_size};
  std::vector<torch::Tensor> feature_rows, clip_rows;
  for_each_unit(session_, units, doing, [&](std::int64_t begin, std::int64_t end) {
    const auto images = make(begin, end);
    if (network_) feature_rows.push_back(network_->features(images));
    if (clip_) {
      const auto of = captions.subspan(static_cast<std::size_t>(begin), images.size());
      clip_rows.push_back(clip_->scores(images, of).unsqueeze(1));
    }
  });
  const auto features = network_ ? gather_rows(world, units, feature_rows) : torch::Tensor();
  const auto clip_scores = clip_ ? gather_rows(world, units, clip_rows) : torch::Tensor();
  Scores scores{.pictures = pictures};
  on_root(world, [&] {
    if (config_.features_out) scores.features = features;
    if (reference_ && reference_->features) scores.reference_pictures = reference_->features->size(0);
    if (config_.wants(Metric::fid)) {
      warn_of_few(features);
      scores.fid = frechet_distance(statistics_of(features), reference_->statistics);
    }
    if (config_.wants(Metric::kid)) {
      const auto kid = kernel_distance(features, *reference_->features, config_.seed);
      scores.kid = kid.mean;
      scores.kid_std = kid.std;
    }
    if (clip_) scores.clip_score = clip_scores.mean().item<double>();
    if (clip_ && pictures > 1) scores.clip_score_std = clip_scores.std(/*unbiased=*/true).item<double>();
  });
  return scores;
}

}  // namespace millrace
