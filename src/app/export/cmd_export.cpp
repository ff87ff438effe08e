// export: a checkpoint becomes a diffusers folder, or a single file.
#include "command.h"
#include "export/export.h"
#include "launch/threads.h"
#include "load_config.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/comm/group.h"
#include "millrace/core/files.h"
#include "millrace/core/text.h"
#include "output.h"
#include "sections.h"

namespace millrace {
namespace {

struct ExportConfig {
  struct Model {
    std::optional<std::string> pipeline;

    void describe(config::Section& section) {
      describe_moved_pipeline(section, pipeline);
      ignore_models_of_trainings(section);
    }
  } model;
  ExportRequest::Weights weights = ExportRequest::Weights::automatic;
  bool allow_changes = false;
  config::Auto<int> threads{};

  void describe(config::Section& section) {
    using Weights = ExportRequest::Weights;
    section.section("model", model, "what the run was trained with");
    section.key("weights", weights,
                {{"auto", Weights::automatic}, {"ema", Weights::ema}, {"raw", Weights::raw}, {"both", Weights::both}},
                "auto = EMA when the run kept one; both = EMA as the plain file, raw as variant non_ema");
    section.key("allow_changes", allow_changes,
                "export although parts of model.pipeline are not those that the U-Net was trained with");
    describe_threads(section, threads);
    ignore_other_sections(section);
  }
};

CheckpointReader checkpoint_of(const CommandLine& line) {
  if (line.has("run") == line.has("checkpoint"))
    throw Error(Exit::usage, "export needs one of --run and --checkpoint",
                "--run takes a run's newest valid checkpoint");
  if (auto checkpoint = line.find("checkpoint")) {
    if (!std::filesystem::is_directory(*checkpoint)) fail(Exit::io, "--checkpoint {}: no such folder", *checkpoint);
    return CheckpointReader::open(*checkpoint);
  }
  const auto run = line.get("run");
  if (!std::filesystem::is_directory(run)) fail(Exit::io, "--run {}: no such folder", run);
  if (auto found = find_checkpoint(run, Group())) return *found;
  throw Error(Exit::io, fmt::format("{} has no checkpoint yet", run), "checkpoint.every says how often a run saves");
}

ExportRequest::Format format_of(const CommandLine& line) {
  const auto word = line.find("format").value_or("diffusers");
  if (word == "diffusers") return ExportRequest::Format::diffusers;
  if (word != "ldm") fail(Exit::usage, "--format {}: it is diffusers or ldm", word);
  if (std::filesystem::path(line.get("out")).extension() != ".safetensors")
    fail(Exit::usage, "--out {}: --format ldm writes a file, which ends in .safetensors", line.get("out"));
  return ExportRequest::Format::ldm;
}

int run_export(const CommandLine& line) {
  const auto loaded = load_config<ExportConfig>(line);
  if (loaded.printed) return 0;
  if (loaded.root.threads.value) use_threads(*loaded.root.threads.value);
  const ExportRequest request{.checkpoint = checkpoint_of(line),
                              .out = line.get("out"),
                              .weights = loaded.root.weights,
                              .format = format_of(line),
                              .allow_changes = loaded.root.allow_changes,
                              .pipeline = typed_pipeline(loaded.report, loaded.root.model.pipeline)};
  if (line.dry_run) {
    say("dry run: nothing was written; {} would be made of {}\n", request.out.string(),
        request.checkpoint.path().string());
    return 0;
  }
  export_checkpoint(request);
  if (request.format == ExportRequest::Format::ldm) {
    say("{}: U-Net, VAE and text encoder in one file, for ComfyUI, web UIs and diffusers' from_single_file\n",
        request.out.string());
    return 0;
  }
  if (export_kind(request.checkpoint, request.pipeline) == ExportKind::vae) {
    say("{}: a VAE's folder, for AutoencoderKL.from_pretrained, or as vae in a pipeline folder\n",
        request.out.string());
    return 0;
  }
  say("{}: a diffusers folder; try  millrace generate --pipeline {} --prompt \"...\" --out images\n",
      request.out.string(), shell_word(request.out.string()));
  return 0;
}

}  // namespace

Command export_command() {
  return {.name = "export",
          .summary = "checkpoint -> diffusers folder, or one file for other tools",
          .usage = "--run DIR|--checkpoint DIR --out DIR [--format diffusers|ldm] [weights=ema|raw|both]",
          .options = {{"run", "DIR", "a run folder: its newest valid checkpoint"},
                      {"checkpoint", "DIR", "one checkpoint"},
                      {"out", "DIR", "the new folder; with --format ldm a file that ends in .safetensors"},
                      {"format", "NAME",
                       "diffusers (a folder) or ldm (one file under the names of the first Stable Diffusion)"}},
          .run = run_export,
          .schema = schema_of<ExportConfig>};
}

}  // namespace millrace
