// bench: how fast the parts are here, on the user's own data and model.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "bench/bench.h"
#include "bench/bench_handoff.h"
#include "command.h"
#include "launch/run_ranks.h"
#include "launch/session.h"
#include "launch/threads.h"
#include "millrace/nn/device.h"

namespace millrace {

void BenchConfig::Bench::describe(config::Section& section) {
  section.key("runs", runs, "measured runs, after the warm-up").at_least(1);
  section.key("seconds", seconds, "no further run is started after this and the warm-up").above(0);
  section.key("warm_up", warm_up, "seconds of load before the first measured run; 0 = one run").at_least(0);
  section.key("steps", steps, "steps in one run of `step`").at_least(1);
  section.key("profile", profile, "after `step`: where its time goes by kinds of operations, in steps of their own");
}

void BenchConfig::Model::describe(config::Section& section) {
  section.key("pipeline", pipeline, "diffusers folder: shapes, tokenizer; its weights for encode and generate");
  section.key("dtype", dtype, "auto = bfloat16 on CUDA, float32 on the CPU").one_of({"auto", "float32", "bfloat16"});
  section.key("gradient_checkpointing", gradient_checkpointing, "compute activations twice instead of keeping them");
  describe_channels_last(section, channels_last);
  describe_fused_kernels(section, fused_kernels);
  describe_cuda_graphs(section, cuda_graphs);
  ignore_models_of_trainings(section);
}

int BenchConfig::micro_batch() const {
  if (batch.micro.value) return *batch.micro.value;
  throw Error(Exit::usage, "batch.micro=auto: a benchmark wants a number",
              "batch.micro=N; the start of `millrace train`, and its --dry-run, say which N a run takes");
}

void BenchConfig::describe(config::Section& section) {
  section.key("threads", threads, "of this process; auto = the CPUs it may use, shared out to the ranks of its node")
      .at_least(1);
  section.section("bench", bench, "how long to measure");
  section.section("run", run, "device");
  section.section("model", model, "pipeline");
  section.section("data", data, "for transform and loader").ignore({"validation", "max_bad_share"});
  section.section("transform", transform, "resolution and policy");
  section.section("tokenizer", tokenizer, "mode");
  section.section("encode", encode, "for encode").ignore({"cache", "rows_per_file", "text_on"});
  section.section("batch", batch, "for loader, step and layers").ignore({"global"});
  section.section("objective", objective, "for step");
  section.section("optim", optim, "for step and optimizer").ignore({"schedule", "warmup"});
  section.section("ema", ema, "for step and optimizer");
  section.section("parallel", parallel, "for step, optimizer and collectives");
  section.section("generate", generate, "for generate").ignore({"initial_latents", "save_latents"});
  ignore_other_sections(section);
}

namespace {

constexpr std::array names = {"transform", "loader",    "encode",      "handoff", "step",
                              "layers",    "optimizer", "collectives", "generate"};

BenchResult bench_handoff(const BenchConfig& c, World& world) {
  HandoffBench bench;
  bench.runs = c.bench.runs;
  BenchResult figures("handoff");
  for (const double value : millrace::bench_handoff(world.group(), bench)) figures.add("bytes", "GB/s", value / 1e9);
  return figures;
}

void check(const BenchConfig& c, const std::string& name, config::Report& report) {
  if (name != "handoff" && name != "collectives" && c.model.pipeline.empty())
    report.problem("model.pipeline", "must be set");
  if (name != "step" && c.bench.profile) report.problem("bench.profile", "is for `bench step` alone");
  if (name != "transform" && name != "loader") return;
  c.data.check(report);
  if (c.data.train.type == SourceConfig::Type::latents)
    report.problem("data.train.type", "is latents: there are no images to read");
}

BenchResult run_benchmark(const BenchConfig& c, const std::string& name, World& world) {
  choose_kernels(resolve_device(c.run.device, world.local_rank()), /*deterministic=*/false, c.model.fused_kernels);
  if (name == "transform") return bench_transform(c);
  if (name == "loader") return bench_loader(c);
  if (name == "encode") return bench_encode(c);
  if (name == "handoff") return bench_handoff(c, world);
  if (name == "step") return bench_step(c, world);
  if (name == "layers") return bench_layers(c);
  if (name == "optimizer") return bench_optimizer(c, world);
  if (name == "collectives") return bench_collectives(c, world);
  return bench_generate(c);
}

int run_bench(const CommandLine& line) {
  const auto all = fmt::format("{}", fmt::join(names, ", "));
  if (line.paths.size() != 1) throw Error(Exit::usage, "bench needs the name of one benchmark", all);
  const auto& name = line.paths[0];
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw Error(Exit::usage, fmt::format("there is no benchmark \"{}\"", name), all);
  return run_ranks([&](World& world) {
    auto loaded = load_config<BenchConfig>(world, line, [&](const auto& c, auto& report) { check(c, name, report); });
    if (loaded.printed || line.dry_run) return 0;
    auto& threads = loaded.root.threads;
    threads.value = count_threads(world, threads);
    use_threads(*threads.value);
    const auto figures = run_benchmark(loaded.root, name, world);
    if (world.is_root()) figures.print(line.has("json"));
    return 0;
  });
}

}  // namespace

Command bench_command() {
  return {.name = "bench",
          .summary =
              "speed of the parts: transform, loader, encode, handoff, step, layers, optimizer, collectives, generate",
          .usage = "NAME [--json] [threads=N] [key=value]...",
          .options = {{"json", "", "one JSON object a figure", OptionSpec::Takes::nothing}},
          .takes_paths = true,
          .run = run_bench,
          .schema = schema_of<BenchConfig>,
          .prints = true,
          .on_ranks = true};
}

}  // namespace millrace
