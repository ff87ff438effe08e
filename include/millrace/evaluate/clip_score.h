#pragma once
#include <torch/types.h>

#include <filesystem>
#include <span>
#include <string>

#include "millrace/image/image.h"
#include "millrace/models/clip_model.h"
#include "millrace/text/tokenizer.h"

namespace millrace {

// From a picture to CLIP's input, as transformers' CLIPImageProcessor with Pillow.
struct ClipPreprocessing {
  // preprocessor_config.json, or processor_config.json, of which it is a part. Error(io) naming the file and the key
  // that is wrong or asks for what is not done here.
  static ClipPreprocessing read(const std::filesystem::path& file);
  // f32 (3, crop height, crop width), or of the picture's own size without a crop.
  torch::Tensor apply(const Image& image) const;

  struct Size {
    int shortest_edge = 0;  // 0: height and width count
    int height = 0, width = 0;
  };
  bool resizes = true, crops = true, rescales = true, normalizes = true;
  Size size, crop;
  double rescale_factor = 1.0 / 255;
  std::vector<float> mean, std;
  std::string file;  // that says so
};

// How well pictures fit their captions (Hessel et al., "CLIPScore"), as torchmetrics: 100 max(0, cos(image, text)).
class ClipScorer {
 public:
  // A CLIPModel folder: config.json, weights, preprocessor_config.json (where it is missing, CLIPProcessor's
  // processor_config.json), tokenizer. Error(io) names file and key.
  static ClipScorer load(const std::filesystem::path& folder, torch::Device device);

  // f64 (B) on the host, of pictures and their captions; B >= 1.
  torch::Tensor scores(std::span<const Image> images, std::span<const std::string> captions);

 private:
  ClipScorer(CLIPModel model, ClipTokenizer tokenizer, ClipPreprocessing preprocessing, torch::Device device);

  CLIPModel model_;
  ClipTokenizer tokenizer_;
  ClipPreprocessing preprocessing_;
  torch::Device device_;
};

}  // namespace millrace
