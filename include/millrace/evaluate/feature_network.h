#pragma once
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "millrace/image/image.h"

namespace millrace {

// How pictures get the size that a feature network takes.
enum class FeatureResize { clean, legacy };

// A TorchScript network that makes a feature vector of a picture, for FID and KID. One with a part `layers`, as
// StyleGAN's and clean-fid's Inception file, gets with
//   clean   layers((x - 128) / 128), x resized as clean-fid does (Parmar et al., "On Aliased Resizing and Surprising
//           Subtleties in GAN Evaluation"): by Pillow's bicubic to 299 x 299 in float32, clipped to 0..255;
//   legacy  forward(x, return_features=True), x the 8-bit pixels, which it resizes itself.
// Any other one gets forward(x), x resized as with clean, f32 (B, 3, 299, 299) in 0..255.
class FeatureNetwork {
 public:
  // Error(io) naming the file that is no TorchScript, or one that writes or reads files; Error(usage) where it has no
  // part for `legacy`.
  static FeatureNetwork load(const std::filesystem::path& file, FeatureResize resize, torch::Device device);
  ~FeatureNetwork();
  FeatureNetwork(FeatureNetwork&&) noexcept;
  FeatureNetwork& operator=(FeatureNetwork&&) noexcept;

  // f32 (B, D) on the host, B >= 1; pictures may differ in size.
  torch::Tensor features(std::span<const Image> images);
  // D: found by the features of a picture.
  std::int64_t width();

 private:
  struct Impl;
  explicit FeatureNetwork(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace
