#pragma once
#include <optional>
#include <string>
#include <vector>

#include "app_config.h"
#include "bench/layers.h"
#include "bench/step_profile.h"
#include "millrace/comm/world.h"
#include "millrace/core/stopwatch.h"
#include "millrace/generate/generate.h"
#include "sections.h"

// What the benchmarks share. Each measures the code that a run uses, on the user's own data and model, and checks what
// came out.
namespace millrace {

struct BenchConfig {
  config::Auto<int> threads{1};
  struct Bench {
    int runs = 5;
    double seconds = 120, warm_up = 0;
    int steps = 5;
    bool profile = false;
    void describe(config::Section& section);
  } bench;
  DeviceConfig run;
  struct Model {
    std::string pipeline;
    std::string dtype = "auto";
    bool gradient_checkpointing = false;
    config::Auto<bool> channels_last{}, fused_kernels{}, cuda_graphs{};
    void describe(config::Section& section);
  } model;
  DataConfig data;
  TransformConfig transform;
  TokenizerConfig tokenizer;
  EncodeConfig encode;
  TrainBatchConfig batch;
  ObjectiveConfig objective;
  OptimConfig optim;
  EmaConfig ema;
  ParallelConfig parallel;
  GenerateConfig generate;

  // Error(usage) for `auto`, which knows a run.
  int micro_batch() const;
  void describe(config::Section& section);
};

// The figures of one benchmark, one value per run each; the first is the whole thing, its stages follow.
class BenchResult {
 public:
  explicit BenchResult(std::string bench) : bench_(std::move(bench)) {}

  // The side of the images of `step` and `encode`, for who plans by their figures: stands in each of their lines.
  void set_resolution(int resolution) { resolution_ = resolution; }
  void add(const std::string& name, const std::string& unit, double value);
  void add(const StepProfile& profile) { profile_ = profile; }
  void add(const LayerTable& layers) { layers_ = layers; }
  // A table, or JSON lines {"bench", "figure", "unit", "median", "min", "max", "runs"}, with "resolution" where set. A
  // profile or layers come last: a table of their own, or the line {"bench", "figure": "profile", ...} and a line for
  // each layer, with what `to_json` gives.
  void print(bool json) const;

 private:
  struct Figure {
    std::string name, unit;
    std::vector<double> values;
  };
  std::string bench_;
  std::optional<int> resolution_;
  std::vector<Figure> figures_;
  std::optional<StepProfile> profile_;
  std::optional<LayerTable> layers_;
};

// Warm-up runs for `bench.warm_up`, one at least, then `bench.runs` measured runs; none is started when the warm-up and
// `bench.seconds` have passed. All ranks decide alike.
template <class Body>
void repeat(const BenchConfig& config, const Group& group, Body&& body) {
  const Stopwatch watch;
  const auto passed = [&](double limit) {
    double seconds = watch.seconds();
    group.all_reduce_max(std::span(&seconds, 1));
    return seconds >= limit;
  };
  do {
    body(/*measured=*/false);
  } while (!passed(config.bench.warm_up));
  for (int i = 0; i < config.bench.runs; ++i) {
    if (i > 0 && passed(config.bench.warm_up + config.bench.seconds)) return;
    body(true);
  }
}

// bench_*.cpp; collective where they take a World.
BenchResult bench_transform(const BenchConfig& config);
BenchResult bench_loader(const BenchConfig& config);
BenchResult bench_encode(const BenchConfig& config);
BenchResult bench_step(const BenchConfig& config, World& world);
BenchResult bench_layers(const BenchConfig& config);
BenchResult bench_optimizer(const BenchConfig& config, World& world);
BenchResult bench_collectives(const BenchConfig& config, World& world);
BenchResult bench_generate(const BenchConfig& config);

}  // namespace millrace
