// bench: how fast the parts are here, on the user's own data and model.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "command.h"
#include "config.h"
#include "millrace/comm/world.h"
#include "millrace/core/log.h"
#include "millrace/data/prepare.h"
#include "millrace/handoff/bench_handoff.h"
#include "millrace/io/tar.h"
#include "millrace/models/initialize.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/device.h"

namespace millrace {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct BenchConfig {
  int threads = 1;
  struct Bench {
    int runs = 5;
    double seconds = 120;
    int steps = 5;
    void describe(config::Section& section) {
      section.key("runs", runs, "measured runs, after one warm-up").at_least(1);
      section.key("seconds", seconds, "no further run is started after this").above(0);
      section.key("steps", steps, "steps in one run of `step`").at_least(1);
    }
  } bench;
  struct Run {
    std::string device = "auto";
    void describe(config::Section& section) {
      section.key("device", device, "auto, cpu or cuda").one_of({"auto", "cpu", "cuda"});
      section.ignore({"dir", "seed"});
    }
  } run;
  struct Model {
    std::string pipeline;
    std::string dtype = "auto";
    bool gradient_checkpointing = false;
    void describe(config::Section& section) {
      section.key("pipeline", pipeline, "diffusers folder: shapes and tokenizer");
      section.key("dtype", dtype, "auto = bfloat16 on CUDA, float32 on the CPU")
          .one_of({"auto", "float32", "bfloat16"});
      section.key("gradient_checkpointing", gradient_checkpointing,
                  "compute activations twice instead of keeping them");
      section.ignore({"unet"});
    }
  } model;
  DataConfig data;
  TransformConfig transform;
  TokenizerConfig tokenizer;
  BatchConfig batch;
  ObjectiveConfig objective;
  OptimConfig optim;
  EmaConfig ema;
  ParallelConfig parallel;

  void describe(config::Section& section) {
    section.key("threads", threads, "of this process").at_least(1);
    section.section("bench", bench, "how long to measure");
    section.section("run", run, "device");
    section.section("model", model, "pipeline");
    section.section("data", data, "for transform");
    section.section("transform", transform, "resolution and policy");
    section.section("tokenizer", tokenizer, "mode");
    section.section("batch", batch, "batch.micro");
    section.section("objective", objective, "for step");
    section.section("optim", optim, "for step");
    section.section("ema", ema, "for step");
    section.section("parallel", parallel, "for step");
    section.ignore({"encode", "roles", "duration", "checkpoint", "samples", "validation", "log", "record", "guard",
                    "download", "generate", "autoencoder"});
  }
};

// Figures of one benchmark: name -> one value per run.
struct Figures {
  std::string bench;
  struct Figure {
    std::string name, unit;
    std::vector<double> values;
  };
  std::vector<Figure> figures;

  void add(const std::string& name, const std::string& unit, double value) {
    auto found =
        std::find_if(figures.begin(), figures.end(), [&](const Figure& figure) { return figure.name == name; });
    if (found == figures.end()) found = figures.insert(figures.end(), {name, unit, {}});
    found->values.push_back(value);
  }

  void print(bool json) const {
    for (const auto& figure : figures) {
      auto sorted = figure.values;
      std::sort(sorted.begin(), sorted.end());
      const double median = sorted.size() % 2 ? sorted[sorted.size() / 2]
                                              : (sorted[sorted.size() / 2 - 1] + sorted[sorted.size() / 2]) / 2;
      if (json) {
        print_out(nlohmann::ordered_json{{"bench", bench},
                                         {"figure", figure.name},
                                         {"unit", figure.unit},
                                         {"median", median},
                                         {"min", sorted.front()},
                                         {"max", sorted.back()},
                                         {"runs", sorted.size()}}
                      .dump());
      } else {
        fmt::print("{:<10} {:<12} {:>12.2f} {:<10} ({:.2f} to {:.2f}, {} runs)\n", bench, figure.name, median,
                   figure.unit, sorted.front(), sorted.back(), sorted.size());
      }
    }
  }
};

template <class Body>
void repeat(const BenchConfig& config, Body&& body) {
  const auto started = Clock::now();
  body(/*measured=*/false);
  for (int i = 0; i < config.bench.runs && (i == 0 || seconds_since(started) < config.bench.seconds); ++i) body(true);
}

// Read, decode, transform, tokenise, one thread after the other's sample: what a producer does before its encoders.
Figures bench_transform(const BenchConfig& c) {
  const auto tokenizer =
      ClipTokenizer::load(PipelineFolder::open(c.model.pipeline).component("tokenizer"), c.tokenizer);
  auto manifest = make_manifest(c.data.train, c.data.allow_pipes);
  const auto source = make_source(c.data.train, manifest, c.transform.resolution, c.data.index);
  const Filter filter(c.data.train.filters);
  const Preparation preparation{0, c.data.images, c.transform, &tokenizer, filter.empty() ? nullptr : &filter};
  Figures figures{"transform", {}};
  repeat(c, [&](bool measured) {
    std::atomic<std::int64_t> images = 0;
    std::atomic<double> read_seconds = 0, prepare_seconds = 0;
    const int threads = c.data.threads.value_or(c.threads);
    const auto started = Clock::now();
    {
      std::vector<std::jthread> workers;
      for (int lane = 0; lane < threads; ++lane)
        workers.emplace_back([&, lane] {
          double read = 0, prepare = 0;
          for (std::uint32_t archive = 0; archive < manifest.archives.size(); ++archive) {
            auto reader =
                source->open({archive, static_cast<std::uint32_t>(lane), static_cast<std::uint32_t>(threads)}, 0);
            for (;;) {
              const auto reading = Clock::now();
              auto row = reader->next();
              read += seconds_since(reading);
              if (!row) break;
              const auto preparing = Clock::now();
              if (auto* sample = std::get_if<RawSample>(&*row))
                images += std::holds_alternative<TransformedSample>(prepare_sample(std::move(*sample), preparation));
              prepare += seconds_since(preparing);
            }
          }
          read_seconds += read;
          prepare_seconds += prepare;
        });
    }
    if (!measured) return;
    if (images == 0) fail(Exit::bad_data, "no usable image in data.train.path");
    figures.add("images", "images/s", images / seconds_since(started));
    figures.add("read", "ms/image", 1000 * read_seconds / images);
    figures.add("prepare", "ms/image", 1000 * prepare_seconds / images);
  });
  return figures;
}

Figures bench_handoff_figures(const BenchConfig& c, World& world) {
  HandoffBench bench;
  bench.runs = c.bench.runs;
  Figures figures{"handoff", {}};
  for (double value : millrace::bench_handoff(world.group(), bench)) figures.add("bytes", "GB/s", value / 1e9);
  return figures;
}

// A whole optimizer step on synthetic inputs of the given resolution.
Figures bench_step(const BenchConfig& c, World& world) {
  at::set_num_threads(c.threads);
  const auto device = resolve_device(c.run.device);
  const auto dtype = parse_dtype(c.model.dtype, device);
  const auto folder = PipelineFolder::open(c.model.pipeline);
  const auto vae = AutoencoderKLConfig::from_json(folder.config("vae"));
  auto unet = make_unet(folder.config("unet"), /*seed=*/0);
  unet->to(device, dtype);
  unet->set_gradient_checkpointing(c.model.gradient_checkpointing);
  const auto group = world.group().duplicate();
  ShardedModel model(*unet, blocks_of(parameter_blocks(*unet)),
                     plan_shards(c.parallel, group.size(), world.local_size()), c.parallel, group);
  ShardedAdamW optimizer(model, c.optim, c.ema);
  const NoiseSchedule schedule(trained_scheduler(folder.scheduler(), c.objective));

  const auto side = c.transform.resolution / vae.factor();
  const auto width = CLIPTextConfig::from_json(folder.config("text_encoder")).hidden_size;
  const auto moments = torch::randn({c.batch.micro, 2 * vae.latent_channels, side, side}).to(torch::kHalf);
  const auto text = torch::randn({c.batch.micro, token_count, width}).to(torch::kHalf);
  std::vector<RngKey> keys;
  for (int i = 0; i < c.batch.micro; ++i) keys.push_back({0, static_cast<std::uint64_t>(i), 0});

  Figures figures{"step", {}};
  repeat(c, [&](bool measured) {
    double input = 0, forward = 0, backward = 0, update = 0;
    for (int i = 0; i < c.bench.steps; ++i) {
      auto now = Clock::now();
      auto lap = [&](double& total) {
        synchronize(device);
        total += seconds_since(now);
        now = Clock::now();
      };
      for (auto& key : keys) ++key.visit;
      const auto step = make_step_input(moments, text, text[0], keys, vae.scaling_factor, vae.shift_factor.value_or(0),
                                        schedule, c.objective, device);
      model.zero_gradients();
      lap(input);
      const auto loss =
          diffusion_loss(unet->forward(step.noisy.to(dtype), step.timesteps, step.text.to(dtype)), step).mean();
      lap(forward);
      loss.backward();
      lap(backward);
      model.reduce_gradients(1.0 / group.size());
      optimizer.step(c.optim.lr, clip_factor(c.optim.clip, model.gradient_norm()));
      lap(update);
    }
    if (!measured) return;
    const double total = input + forward + backward + update;
    figures.add("steps", "steps/s", c.bench.steps / total);
    figures.add("images", "images/s", c.bench.steps * c.batch.micro * group.size() / total);
    figures.add("input", "ms", 1000 * input / c.bench.steps);
    figures.add("forward", "ms", 1000 * forward / c.bench.steps);
    figures.add("backward", "ms", 1000 * backward / c.bench.steps);
    figures.add("update", "ms", 1000 * update / c.bench.steps);
  });
  return figures;
}

int run_bench(const CommandLine& line) {
  if (line.paths.size() != 1)
    throw Error(Exit::usage, "bench needs the name of one benchmark", "transform, step or handoff");
  const auto& name = line.paths[0];
  auto loaded = load_config<BenchConfig>(line, [&](const BenchConfig& c, config::Report& report) {
    if (name != "handoff" && c.model.pipeline.empty()) report.problem("model.pipeline", "must be set");
    if (name == "transform" && c.data.train.path.empty()) report.problem("data.train.path", "must be set");
  });
  if (loaded.printed) return 0;
  World world;
  Figures figures;
  if (name == "transform") {
    figures = bench_transform(loaded.root);
  } else if (name == "handoff") {
    figures = bench_handoff_figures(loaded.root, world);
  } else if (name == "step") {
    figures = bench_step(loaded.root, world);
  } else {
    throw Error(Exit::usage, fmt::format("bench {} is not available in this version", name),
                "transform, step or handoff");
  }
  if (world.rank() == 0) figures.print(line.has("json"));
  return 0;
}

}  // namespace

Command bench_command() {
  return {"bench",
          "speed of the parts: transform, step, handoff",
          "NAME [--json] [threads=N] [key=value]...",
          {{"json", "", "one JSON object a figure", OptionSpec::Takes::nothing}},
          true,
          run_bench,
          schema_of<BenchConfig>};
}

}  // namespace millrace
