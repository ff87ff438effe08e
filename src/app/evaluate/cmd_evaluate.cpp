// evaluate: how good pictures are. Of a pipeline, of a run's checkpoints, or of a folder.
#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "command.h"
#include "evaluate/evaluate_job.h"
#include "evaluate/evaluation.h"
#include "evaluate/run_evaluation.h"
#include "launch/run_ranks.h"
#include "launch/session.h"
#include "millrace/core/files.h"
#include "millrace/core/run_files.h"
#include "output.h"

namespace millrace {
namespace {

using Metric = EvaluateConfig::Metric;
using Source = EvaluateJob::Source;

// RUN of RUN/checkpoints/step-00001000; empty for one that lies elsewhere.
fs::path run_around(const fs::path& checkpoint) {
  const auto path = normal_path(checkpoint);
  const auto run = path.parent_path().parent_path();
  return path.parent_path() == checkpoints_in(run) ? run : fs::path();
}

EvaluateJob job_of(const CommandLine& line) {
  for (const char* name : {"pipeline", "run", "checkpoint", "images", "out"})  // as of a script's unset variable
    if (line.find(name) == "") fail(Exit::usage, "--{} is empty: it takes a folder", name);
  std::optional<EvaluateJob> job;
  for (const auto& [name, source] : {std::pair{"pipeline", Source::pipeline},
                                     {"run", Source::run},
                                     {"checkpoint", Source::run},
                                     {"images", Source::images}}) {
    const auto path = line.find(name);
    if (!path) continue;
    if (job) fail(Exit::usage, "give one of --pipeline, --run, --checkpoint and --images");
    job = EvaluateJob{source, *path, line.find("out").value_or(source == Source::run ? *path : ""), line.has("follow")};
  }
  if (!job) fail(Exit::usage, "what is evaluated? --pipeline DIR, --run DIR, --checkpoint DIR or --images DIR");
  job->is_of_one_checkpoint = line.has("checkpoint");
  if (job->is_of_one_checkpoint && !line.has("out")) job->out = run_around(job->path);
  if (job->follow && (job->source != Source::run || job->is_of_one_checkpoint))
    fail(Exit::usage, "--follow goes with --run alone");
  if (job->out.empty()) (void)line.get("out");
  return *job;
}

// A file of features would be of the last scores only.
void check_features_out(const EvaluateConfig& c, const EvaluateJob& job, config::Report& report) {
  if (c.features_out && (job.follow || (job.source != Source::images && c.guidance_scales.size() > 1)))
    report.problem("evaluate.features_out", "is for one set of pictures: no --follow, one guidance scale");
}

void check(const EvaluateRoot& root, const EvaluateJob& job, config::Report& report) {
  const auto& c = root.evaluate;
  if (!root.measures_pictures() && job.source != Source::run)
    report.problem("evaluate.metrics", "is empty: there is nothing to measure", {"evaluate.features_out"});
  if (c.needs_features() && !c.features)
    report.problem("evaluate.features",
                   "must be set for fid and kid: a TorchScript file. clean-fid (pip install clean-fid) fetches "
                   "inception-2015-12-05.pt, the usual one: python -c 'from cleanfid.downloads_helper import *; "
                   "check_download_inception()'. Of any other network torch.jit.trace(network.eval(), torch.zeros(1, "
                   "3, 299, 299)).save(FILE) makes one, which gets pixels in 0..255; docs/evaluation.md has both",
                   {"evaluate.metrics"});
  if ((c.wants(Metric::fid) || c.wants(Metric::kid)) && !c.reference)
    report.problem("evaluate.reference",
                   "must be set for fid and kid: a folder of images, .npz with mu and sigma (clean-fid's and "
                   "pytorch-fid's statistics are; FID alone) or with feats (clean-fid's for KID are), or .safetensors "
                   "that evaluate.features_out has written",
                   {"evaluate.metrics"});
  if (c.wants(Metric::clip) && !c.clip)
    report.problem("evaluate.clip",
                   "must be set for clip: a folder of transformers' CLIPModel with its processor, weights as "
                   "safetensors: hf download openai/clip-vit-large-patch14 --local-dir FOLDER",
                   {"evaluate.metrics"});
  if (!c.prompts && (c.wants(Metric::clip) || (root.measures_pictures() && job.source != Source::images)))
    report.problem("evaluate.prompts", "must be set: the captions", {"evaluate.metrics"});
  if (c.count < 2 && (c.wants(Metric::fid) || c.wants(Metric::kid)))
    report.problem("evaluate.count", "must be at least 2 for fid and kid", {"evaluate.metrics"});
  if (c.guidance_scales.empty()) report.problem("evaluate.guidance_scales", "is empty: nothing would be painted");
  if (std::set(c.guidance_scales.begin(), c.guidance_scales.end()).size() < c.guidance_scales.size())
    report.problem("evaluate.guidance_scales", "names one of them twice");
  if (c.patience.unit != Duration::Unit::seconds || c.patience.count <= 0)
    report.problem("evaluate.patience", "must be a time, as in \"24 h\"");
  if (c.weights != EvaluateConfig::Weights::automatic && job.source != Source::run)
    report.problem("evaluate.weights", "is of a run's checkpoints: it goes with --run and --checkpoint");
  if (typed_pipeline(report, root.model.pipeline) && job.source != Source::run)
    report.problem("model.pipeline", "is of a run's checkpoints: it goes with --run and --checkpoint");
  check_features_out(c, job, report);
  root.guard.check(report);
}

// The preset's defaults below what the user gave.
Loaded<EvaluateRoot> load_root(const World& world, const CommandLine& line, const EvaluateJob& job) {
  const auto defaults = on_all(world.group(), [&] {
    EvaluateRoot first, defaults;
    config::load(first, line.inputs);
    if (first.evaluate.preset) set_preset(*first.evaluate.preset, defaults.evaluate, defaults.generate);
    return defaults;
  });
  auto loaded = load_config<EvaluateRoot>(
      world, line, [&](const auto& root, auto& report) { check(root, job, report); }, defaults);
  auto& pipeline = loaded.root.model.pipeline;
  pipeline = typed_pipeline(loaded.report, pipeline);
  return loaded;
}

void evaluate(const Session& session, const EvaluateRoot& root, const EvaluateJob& job) {
  switch (job.source) {
    case Source::images:
      Evaluation(session, root, job).score_images();
      break;
    case Source::pipeline:
      on_root(session.world.group(), [&] { check_settings(PipelineFolder::open(job.path), root.generate); });
      Evaluation(session, root, job).score_pipeline();
      break;
    case Source::run:
      if (!job.follow) check_checkpoint(session, root, job);
      RunEvaluation evaluation(session, root, job);
      job.follow ? evaluation.follow() : evaluation.score_one();
      break;
  }
}

int run_evaluate(const CommandLine& line) {
  const auto job = job_of(line);
  return run_ranks([&](World& world) {
    const auto loaded = load_root(world, line, job);
    if (loaded.printed) return 0;
    const auto& root = loaded.root;
    const auto session = start_session(world, root.run.device, root.guard, root.threads);
    if (line.dry_run) {
      if (session.is_root())
        say("dry run: nothing was written; scores of {} would go to {}\n", job.path.string(),
            (job.out / run_file::evaluations).string());
      return 0;
    }
    evaluate(session, root, job);
    if (session.is_root()) say("scores are in {}\n", (job.out / run_file::evaluations).string());
    return 0;
  });
}

}  // namespace

void EvaluateRoot::Model::describe(config::Section& section) {
  PrecisionConfig::describe(section);
  describe_moved_pipeline(section, pipeline);
}

void EvaluateRoot::Tokenizer::describe(config::Section& section) {
  using Mode = TokenizerConfig::Mode;
  section.key("mode", mode, {{"hf", Mode::hf}, {"open_clip", Mode::open_clip}},
              "hf = as transformers runs the folder's files; open_clip = as SD 2 was trained; auto = hf, of a run both "
              "keys as it was trained");
  section
      .key("pad_id", pad_id,
           "id behind the end of a caption; auto = the pad token of the folder's files, in open_clip 0")
      .at_least(0);
}

void EvaluateRoot::describe(config::Section& section) {
  section.section("run", run, "where it runs");
  section.section("model", model, "arithmetic of the painting networks, and where a run's folder lies");
  section.section("tokenizer", tokenizer, "from prompts to ids");
  section.section("generate", generate, "how pictures are painted")
      .ignore({"guidance_scale", "seed", "batch_size", "initial_latents", "save_latents"});
  section.section("evaluate", evaluate, "what is measured");
  describe_hang_guard(section, guard);
  describe_threads(section, threads);
  ignore_other_sections(section);
}

Command evaluate_command() {
  return {
      .name = "evaluate",
      .summary = "FID, KID, CLIP score and loss of a pipeline, a run or a folder of images",
      .usage = "--pipeline DIR|--run DIR [--follow]|--checkpoint DIR|--images DIR --out DIR [evaluate.KEY=VALUE]...",
      .options = {{"pipeline", "DIR", "a diffusers folder, which paints evaluate.prompts"},
                  {"run", "DIR", "a run folder: its newest checkpoint"},
                  {"follow", "", "with --run: each checkpoint once, as they come, until the run is done",
                   OptionSpec::Takes::nothing},
                  {"checkpoint", "DIR", "one checkpoint of a run"},
                  {"images", "DIR",
                   "pictures that are there already, in the order of their names or as evaluate.prompts names them"},
                  {"out", "DIR",
                   "evaluation.jsonl, evaluation/ with the first pictures, sweep.html; default: the run"}},
      .run = run_evaluate,
      .schema = schema_of<EvaluateRoot>,
      .heeds_signals = true,
      .on_ranks = true};
}

}  // namespace millrace
