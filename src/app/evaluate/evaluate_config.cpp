#include "evaluate/evaluate_config.h"

#include <algorithm>

namespace millrace {

void EvaluateConfig::describe(config::Section& section) {
  section.key("preset", preset, {{"mlperf", Preset::mlperf}, {"mosaic", Preset::mosaic}, {"custom", Preset::custom}},
              "other defaults for metrics, count, guidance_scales, reference_crop, generate.*: those of MLPerf's or "
              "MosaicML's numbers; null or custom = none");
  section.key("metrics", metrics, {{"fid", Metric::fid}, {"kid", Metric::kid}, {"clip", Metric::clip}},
              "which scores; without any the loss alone is measured (--run)");
  section.key("prompts", prompts,
              "captions: a line each (.txt), or column caption or prompt of .jsonl, .csv, .tsv, whose column file "
              "names the pictures of --images; what is painted, and what the CLIP score compares pictures with");
  section.key("count", count, "captions that are painted: the first ones").at_least(1);
  section.key("guidance_scales", guidance_scales, "a line of evaluation.jsonl for each, as in [1.5, 3, 7.5]")
      .at_least(0);
  section.key("weights", weights, {{"auto", Weights::automatic}, {"ema", Weights::ema}, {"raw", Weights::raw}},
              "of a run's checkpoint, each with lines of their own; auto = EMA when the run kept one");
  section.key("seed", seed, "of the first picture's noise; picture n has seed + n");
  section.key("batch_size", batch_size, "pictures that are painted and scored together").at_least(1);
  section.key("features", features,
              "TorchScript network of FID and KID: StyleGAN's and clean-fid's Inception file, or any that takes f32 "
              "(B, 3, 299, 299) in 0..255; it is a program, which runs: take it from those you trust");
  section.key("reference", reference,
              "what FID and KID compare with: a folder of images, .npz with mu and sigma (FID alone) or feats, or "
              ".safetensors with features");
  section.key("reference_crop", reference_crop, {{"none", Crop::none}, {"center", Crop::center}},
              "center = of each image of a folder the middle square alone, as where pictures are painted square");
  section.key("resize", resize, {{"clean", FeatureResize::clean}, {"legacy", FeatureResize::legacy}},
              "to the network's 299 pixels: as clean-fid, or inside StyleGAN's network");
  section.key("clip", clip, "CLIPModel folder (transformers') for the CLIP score");
  section.key("features_out", features_out, "also write the pictures' features: safetensors, features f32 (N, D)");
  section.key(
      "patience", patience,
      "--follow ends when the run has made no checkpoint for so long; when STATE calls it failed, for a hundredth of "
      "that");
}

bool EvaluateConfig::wants(Metric metric) const {
  return std::find(metrics.begin(), metrics.end(), metric) != metrics.end();
}

const char* to_string(EvaluateConfig::Preset preset) {
  switch (preset) {
    case EvaluateConfig::Preset::mlperf:
      return "mlperf";
    case EvaluateConfig::Preset::mosaic:
      return "mosaic";
    case EvaluateConfig::Preset::custom:
      return "custom";
  }
  return "";
}

void set_preset(EvaluateConfig::Preset preset, EvaluateConfig& evaluate, GenerateConfig& generate) {
  using Metric = EvaluateConfig::Metric;
  if (preset == EvaluateConfig::Preset::custom) return;
  evaluate.count = 30000;
  generate.steps = 50;
  generate.sampler = SchedulerClass::ddim;
  generate.height = {512};
  generate.width = {512};
  if (preset == EvaluateConfig::Preset::mlperf) {
    evaluate.metrics = {Metric::fid, Metric::clip};
    evaluate.guidance_scales = {8};
  } else {
    evaluate.guidance_scales = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    evaluate.reference_crop = EvaluateConfig::Crop::center;
  }
}

}  // namespace millrace
