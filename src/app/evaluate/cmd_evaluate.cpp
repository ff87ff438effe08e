// evaluate: how good pictures are. Of a pipeline, of a run's checkpoints, or of a folder.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app_config.h"
#include "command.h"
#include "evaluate/captions.h"
#include "evaluate/checkpoint_watch.h"
#include "evaluate/evaluate_config.h"
#include "evaluate/evaluation_file.h"
#include "evaluate/image_folder.h"
#include "evaluate/painter.h"
#include "evaluate/run_loss.h"
#include "evaluate/scorer.h"
#include "evaluate/sweep_page.h"
#include "millrace/checkpoint/run_lease.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/image/grid.h"
#include "millrace/image/png.h"
#include "millrace/nn/device.h"
#include "run/resume.h"
#include "run/session.h"
#include "sections.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;
using Metric = EvaluateConfig::Metric;

struct EvaluateRoot {
  DeviceConfig run;
  PrecisionConfig model;
  TokenizerConfig tokenizer;
  GenerateConfig generate;
  EvaluateConfig evaluate;
  GuardConfig guard;
  config::Auto<int> threads{};

  void describe(config::Section& section) {
    section.section("run", run, "where it runs").ignore({"dir", "seed", "deterministic"});
    section.section("model", model, "arithmetic of the painting networks")
        .ignore({"pipeline", "unet", "gradient_checkpointing", "channels_last", "fused_kernels"});
    section.section("tokenizer", tokenizer, "from prompts to ids");
    section.section("generate", generate, "how pictures are painted")
        .ignore({"guidance_scale", "seed", "batch_size", "initial_latents", "save_latents"});
    section.section("evaluate", evaluate, "what is measured");
    section.section("guard", guard, "what to do when a rank hangs")
        .ignore({"non_finite", "spike_sigma", "max_skips", "on_repeat", "digest_every"});
    describe_threads(section, threads);
    ignore_other_sections(section);
  }
};

enum class Source { pipeline, run, images };

struct Job {
  Source source;
  fs::path path, out;
  bool follow = false;
};

Job job_of(const CommandLine& line) {
  std::optional<Job> job;
  for (const auto& [name, source] :
       {std::pair{"pipeline", Source::pipeline}, {"run", Source::run}, {"images", Source::images}}) {
    const auto path = line.find(name);
    if (!path) continue;
    if (job) fail(Exit::usage, "give one of --pipeline, --run and --images");
    job = Job{source, *path, line.find("out").value_or(source == Source::run ? *path : ""), line.has("follow")};
  }
  if (!job) fail(Exit::usage, "what is evaluated? --pipeline DIR, --run DIR or --images DIR");
  if (job->follow && job->source != Source::run) fail(Exit::usage, "--follow goes with --run alone");
  if (job->out.empty()) (void)line.get("out");
  return *job;
}

// A file of features would be of the last scores only.
void check_features_out(const EvaluateConfig& c, const Job& job, config::Report& report) {
  if (c.features_out && (job.follow || (job.source != Source::images && c.guidance_scales.size() > 1)))
    report.problem("evaluate.features_out", "is for one set of pictures: no --follow, one guidance scale");
}

void check(const EvaluateRoot& root, const Job& job, config::Report& report) {
  const auto& c = root.evaluate;
  const bool is_measured = !c.metrics.empty() || c.features_out;
  if (!is_measured && job.source != Source::run)
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
                   "pytorch-fid's statistics are; FID alone), or .safetensors that evaluate.features_out has written",
                   {"evaluate.metrics"});
  if (c.wants(Metric::kid) && c.reference && fs::path(*c.reference).extension() == ".npz")
    report.problem("evaluate.reference",
                   "KID needs features, and .npz holds statistics: give images or .safetensors, or leave kid out of "
                   "evaluate.metrics",
                   {"evaluate.metrics"});
  if (c.wants(Metric::clip) && !c.clip)
    report.problem("evaluate.clip",
                   "must be set for clip: a folder of transformers' CLIPModel with its processor, weights as "
                   "safetensors: hf download openai/clip-vit-large-patch14 --local-dir FOLDER",
                   {"evaluate.metrics"});
  if (!c.prompts && (c.wants(Metric::clip) || (is_measured && job.source != Source::images)))
    report.problem("evaluate.prompts", "must be set: the captions", {"evaluate.metrics"});
  if (c.count < 2 && (c.wants(Metric::fid) || c.wants(Metric::kid)))
    report.problem("evaluate.count", "must be at least 2 for fid and kid", {"evaluate.metrics"});
  if (c.guidance_scales.empty()) report.problem("evaluate.guidance_scales", "is empty: nothing would be painted");
  if (std::set(c.guidance_scales.begin(), c.guidance_scales.end()).size() < c.guidance_scales.size())
    report.problem("evaluate.guidance_scales", "names one of them twice");
  if (c.patience.unit != Duration::Unit::seconds || c.patience.count <= 0)
    report.problem("evaluate.patience", "must be a time, as in \"24 h\"");
  check_features_out(c, job, report);
}

// The preset's defaults below what the user gave.
Loaded<EvaluateRoot> load_root(const World& world, const CommandLine& line, const Job& job) {
  return on_all(world.group(), [&] {
    EvaluateRoot first, defaults;
    config::load(first, line.inputs);
    if (first.evaluate.preset) set_preset(*first.evaluate.preset, defaults.evaluate, defaults.generate);
    return load_config<EvaluateRoot>(
        line, [&](const auto& root, auto& report) { check(root, job, report); }, world.rank() == 0, defaults);
  });
}

// Everything that evaluating needs, for as many checkpoints and guidance scales as there are.
class Evaluation {
 public:
  Evaluation(const Session& session, const EvaluateRoot& root, const Job& job)
      : session_(session),
        root_(root),
        job_(job),
        arithmetic_{session.device, parse_dtype(root.model.dtype, session.device)} {
    const auto& c = root.evaluate;
    on_all(world(), [&] {
      if (c.prompts) captions_ = read_captions(*c.prompts);
      if (is_measured() && job_.source != Source::images) check_count(painted(), "evaluate.prompts", *c.prompts);
    });
    if (is_measured()) scorer_.emplace(session, c);
    on_root(world(), [&] {
      std::error_code error;
      fs::create_directories(folder(), error);
      if (error) fail(Exit::io, "--out {}: {}", job.out.string(), error.message());
    });
    lease_.emplace(RunLease::acquire(world(), folder()));
    on_root(world(), [&] { file_.emplace(job.out / "evaluation.jsonl"); });
  }

  void score_images() {
    const auto files = on_all(world(), [&] {
      auto found = list_images(job_.path);
      if (root_.evaluate.wants(Metric::clip) && captions_.size() < found.size())
        fail(Exit::usage, "evaluate.prompts holds {} captions for {} pictures", captions_.size(), found.size());
      check_count(std::ssize(found), "--images", job_.path.string());
      return found;
    });
    const auto scores =
        scorer_->score(std::ssize(files), captions_, "scoring", [&](std::int64_t begin, std::int64_t end) {
          std::vector<Image> images;
          for (auto i = begin; i < end; ++i) images.push_back(read_image(files[static_cast<std::size_t>(i)]));
          return images;
        });
    put({{"checkpoint", job_.path.string()}}, scores, {});
  }

  void score_pipeline() {
    const auto pipeline = open_pipeline(world(), job_.path.string());
    on_all(world(), [&] { painter_.emplace(pipeline, root_.tokenizer, arithmetic_); });
    paint_scales({{"checkpoint", job_.path.string()}}, {});
  }

  void score_newest() {
    on_all(world(), [&] {
      if (!fs::is_directory(job_.path)) fail(Exit::io, "--run {}: no such folder", job_.path.string());
    });
    const auto checkpoint = find_checkpoint(job_.path, world());
    if (!checkpoint)
      throw AgreedError(Error(Exit::io, fmt::format("{} has no checkpoint yet", job_.path.string()),
                              "checkpoint.every says how often a run saves; --follow waits for the first one"),
                        world());
    bool is_old = false;
    on_root(world(), [&] { is_old = is_scored(about(*checkpoint)); });
    if (world().any(is_old)) {
      if (session_.is_root()) log::info("{} is scored already", name_of(about(*checkpoint)));
      return;
    }
    make_networks(*checkpoint);
    load_weights(*checkpoint);
    score_loaded(*checkpoint);
  }

  // Each checkpoint of the run once, until it is done.
  void follow() {
    CheckpointWatch watch(session_, job_.path, root_.evaluate.patience.count,
                          [&](std::int64_t step, const std::string& digest) {
                            return is_scored({{"step", step}, {"digest", digest}});
                          });
    while (const auto path = watch.next()) {
      // What fails by the checkpoint costs this one; what fails by the model's folder or the data would cost all.
      const auto is_readable = [&](auto&& read) {
        try {
          read();
          return true;
        } catch (const AgreedError& error) {
          const bool is_there = on_all(world(), [&] { return fs::exists(*path); });
          if (session_.is_root())
            log::warning("{} is passed over: {}", path->string(), is_there ? error.what() : "it is gone");
          watch.pass_over(*path);
          return false;
        }
      };
      std::optional<CheckpointReader> checkpoint;
      if (!is_readable([&] { checkpoint = CheckpointReader::open(*path, world()); })) continue;
      make_networks(*checkpoint);
      if (is_readable([&] { load_weights(*checkpoint); })) score_loaded(*checkpoint);
    }
  }

 private:
  const Group& world() const { return session_.world.group(); }
  fs::path folder() const { return job_.out / "evaluation"; }
  bool is_measured() const { return !root_.evaluate.metrics.empty() || root_.evaluate.features_out; }
  std::int64_t painted() const { return std::min<std::int64_t>(root_.evaluate.count, std::ssize(captions_)); }

  // Distances are between distributions, of which one picture tells nothing.
  void check_count(std::int64_t pictures, const char* key, const std::string& path) const {
    if (pictures < 2 && (root_.evaluate.wants(Metric::fid) || root_.evaluate.wants(Metric::kid)))
      throw Error(Exit::usage, fmt::format("{} {}: FID and KID need two pictures, and there is one", key, path),
                  "evaluate.metrics=[clip] takes one");
  }

  // With the first checkpoint.
  void make_networks(const CheckpointReader& checkpoint) {
    if (painter_) return;
    on_all(world(), [&] {
      pipeline_ = PipelineFolder::open(checkpoint.manifest().at("pipeline").get<std::string>());
      painter_.emplace(checkpoint, pipeline_, root_.tokenizer, arithmetic_);
      trained_ = trained_config(checkpoint);
      trained_.run.dir.value = folder().string();
    });
    if (trained_.data.validation) loss_.emplace(session_, trained_, pipeline_, painter_->unet(), arithmetic_.dtype);
  }

  void load_weights(const CheckpointReader& checkpoint) {
    on_all(world(), [&] { painter_->load_weights(checkpoint); });
  }

  Json about(const CheckpointReader& checkpoint) const {
    return {{"step", checkpoint.state().step},
            {"checkpoint", checkpoint.path().string()},
            {"digest", digest_of(checkpoint.files())}};
  }

  void score_loaded(const CheckpointReader& checkpoint) {
    std::optional<ValidationLoss> loss;
    if (loss_) loss = loss_->measure();
    if (is_measured()) {
      paint_scales(about(checkpoint), loss);
    } else {
      put(about(checkpoint), {}, loss);
    }
  }

  void paint_scales(const Json& of, const std::optional<ValidationLoss>& loss) {
    for (const double scale : root_.evaluate.guidance_scales) {
      auto line = of;
      line["guidance_scale"] = scale;
      if (!line.contains("step") || !is_held(line)) put(line, paint_and_score(line, scale), loss);
    }
    on_root(world(), [&] { write_sweep(of); });
  }

  // The picture of several guidance scales, of the model that was scored last.
  void write_sweep(Json of) const {
    of["protocol"] = protocol();
    const auto page = render_sweep(name_of(of), file_->sweep_of(of));
    if (page) write_file_atomically(job_.out / "sweep.html", *page);
  }

  // By the file on rank 0. Collective.
  bool is_held(Json line) const {
    bool is_held = false;
    on_root(world(), [&] { is_held = holds(std::move(line)); });
    return world().any(is_held);
  }

  // On rank 0, which has the file. Features are another one, of which it does not tell.
  bool holds(Json line) const {
    line["protocol"] = protocol();
    return !root_.evaluate.features_out && file_->holds(line);
  }

  Scores paint_and_score(const Json& line, double scale) {
    auto generate = root_.generate;
    generate.guidance_scale = scale;
    generate.batch_size = root_.evaluate.batch_size;
    return scorer_->score(painted(), captions_, fmt::format("painting {}", name_of(line)),
                          [&](std::int64_t begin, std::int64_t end) {
                            std::vector<ImageRequest> requests;
                            for (auto n = begin; n < end; ++n)
                              requests.push_back({captions_[static_cast<std::size_t>(n)], generate.negative_prompt,
                                                  root_.evaluate.seed + static_cast<std::uint64_t>(n)});
                            auto images = painter_->paint(requests, generate);
                            if (begin == 0) write_first_pictures(line, images, requests);
                            return images;
                          });
  }

  // For a look at what was scored.
  void write_first_pictures(const Json& line, std::vector<Image> images, const std::vector<ImageRequest>& requests) {
    images.resize(std::min<std::size_t>(images.size(), 16));
    std::vector<std::string> captions;
    for (std::size_t i = 0; i < images.size(); ++i) captions.push_back(requests[i].prompt);
    const auto name = line.contains("step") ? step_name(line["step"]) : "pipeline";
    write_png(folder() / fmt::format("{}-scale-{}.png", name, line["guidance_scale"].get<double>()),
              make_grid(images, captions));
  }

  static std::string name_of(const Json& line) {
    auto name = line.contains("step") ? fmt::format("step {}", line["step"].get<std::int64_t>())
                                      : line["checkpoint"].get<std::string>();
    if (line.contains("guidance_scale")) name += fmt::format(", scale {}", line["guidance_scale"].get<double>());
    return name;
  }

  // Settings that make scores comparable: lines with other ones are made anew.
  Json protocol() const {
    const auto& c = root_.evaluate;
    Json json = {{"preset", to_string(c.preset.value_or(EvaluateConfig::Preset::custom))}};
    if (c.needs_features()) {
      json["features"] = *c.features;
      json["resize"] = c.resize == FeatureResize::clean ? "clean" : "legacy";
    }
    if (c.reference && c.needs_features()) json["reference"] = *c.reference;
    if (c.wants(Metric::clip)) json["clip"] = *c.clip;
    if (c.prompts) json["prompts"] = *c.prompts;
    for (const auto metric : c.metrics)
      json["metrics"].push_back(metric == Metric::fid ? "fid" : metric == Metric::kid ? "kid" : "clip");
    if (job_.source == Source::images || !is_measured()) return json;
    const auto& g = root_.generate;
    json["count"] = painted();
    json["seed"] = c.seed;
    json["batch_size"] = c.batch_size;
    json["steps"] = g.steps;
    json["sampler"] = g.sampler ? to_string(*g.sampler) : "the model's";
    const auto pixels = [](const config::Auto<int>& side) { return side.is_auto() ? Json("auto") : Json(*side.value); };
    json["size"] = {pixels(g.height), pixels(g.width)};
    json["guidance_rescale"] = g.guidance_rescale;
    json["negative_prompt"] = g.negative_prompt;
    json["dtype"] = root_.model.dtype;
    return json;
  }

  // At each guidance scale.
  bool is_scored(Json line) const {
    if (!is_measured()) return holds(line);
    return std::ranges::all_of(root_.evaluate.guidance_scales, [&](double scale) {
      line["guidance_scale"] = scale;
      return holds(line);
    });
  }

  void put(Json line, const Scores& scores, const std::optional<ValidationLoss>& loss) {
    on_root(world(), [&] {
      if (scores.pictures > 0) line["images"] = scores.pictures;
      const auto add = [&](const char* key, const std::optional<double>& value) {
        if (value) line[key] = *value;
      };
      add("fid", scores.fid);
      add("kid", scores.kid);
      add("kid_std", scores.kid_std);
      add("clip_score", scores.clip_score);
      if (loss)
        for (const auto& bucket : loss->by_timestep)
          if (std::isfinite(bucket.mean)) line["loss"][bucket.name()] = bucket.mean;
      line["protocol"] = protocol();
      if (!lease_->is_ours()) fail(Exit::requeue, "{} has another owner by now", folder().string());
      file_->put(line);
      print_out(describe(line, loss));
    });
  }

  static std::string describe(const Json& line, const std::optional<ValidationLoss>& loss) {
    auto text = name_of(line);
    const auto number = [&](const char* key, const char* title, const char* format) {
      if (line.contains(key))
        text += fmt::format("  {} {}", title, fmt::format(fmt::runtime(format), line[key].get<double>()));
    };
    number("fid", "FID", "{:.4g}");
    number("kid", "KID", "{:.5f}");
    number("kid_std", "+-", "{:.5f}");
    number("clip_score", "CLIP score", "{:.2f}");
    if (loss) text += fmt::format("  loss {:.5f}", loss->mean);
    if (line.contains("images")) text += fmt::format("  ({} pictures)", line["images"].get<std::int64_t>());
    return text;
  }

  const Session& session_;
  const EvaluateRoot& root_;
  const Job& job_;
  const Painter::Arithmetic arithmetic_;
  std::vector<std::string> captions_;
  std::optional<Scorer> scorer_;
  std::optional<RunLease> lease_;
  std::optional<EvaluationFile> file_;  // of rank 0
  PipelineFolder pipeline_;
  TrainConfig trained_;
  std::optional<Painter> painter_;
  std::optional<RunLoss> loss_;
};

int run_evaluate(const CommandLine& line) {
  const auto job = job_of(line);
  return run_ranks([&](World& world) {
    const auto loaded = load_root(world, line, job);
    if (loaded.printed) return 0;
    const auto& root = loaded.root;
    const auto session = start_session(world, root.run.device, root.guard.hang_timeout, root.threads);
    if (line.dry_run) {
      if (session.is_root())
        fmt::print("dry run: nothing was written; scores of {} would go to {}\n", job.path.string(),
                   (job.out / "evaluation.jsonl").string());
      return 0;
    }
    Evaluation evaluation(session, root, job);
    switch (job.source) {
      case Source::images:
        evaluation.score_images();
        break;
      case Source::pipeline:
        evaluation.score_pipeline();
        break;
      case Source::run:
        job.follow ? evaluation.follow() : evaluation.score_newest();
        break;
    }
    if (session.is_root()) fmt::print("scores are in {}\n", (job.out / "evaluation.jsonl").string());
    return 0;
  });
}

}  // namespace

Command evaluate_command() {
  return {"evaluate",
          "FID, KID, CLIP score and loss of a pipeline, a run or a folder of images",
          "--pipeline DIR|--run DIR [--follow]|--images DIR --out DIR [evaluate.KEY=VALUE]...",
          {{"pipeline", "DIR", "a diffusers folder, which paints evaluate.prompts"},
           {"run", "DIR", "a run folder: its newest checkpoint"},
           {"follow", "", "with --run: each checkpoint once, as they come, until the run is done",
            OptionSpec::Takes::nothing},
           {"images", "DIR", "pictures that are there already, in the order of their names"},
           {"out", "DIR", "evaluation.jsonl, evaluation/ with the first pictures, sweep.html; default: the run"}},
          false,
          run_evaluate,
          schema_of<EvaluateRoot>,
          /*heeds_signals=*/true,
          /*on_ranks=*/true};
}

}  // namespace millrace
