// export: a checkpoint becomes a diffusers folder.
#include "command.h"
#include "export.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/comm/group.h"

namespace millrace {
namespace {

struct ExportConfig {
  ExportRequest::Weights weights = ExportRequest::Weights::automatic;

  void describe(config::Section& section) {
    using Weights = ExportRequest::Weights;
    section.key("weights", weights,
                {{"auto", Weights::automatic}, {"ema", Weights::ema}, {"raw", Weights::raw}, {"both", Weights::both}},
                "auto = EMA when the run kept one; both = EMA as the plain file, raw as variant non_ema");
  }
};

CheckpointReader checkpoint_of(const CommandLine& line) {
  if (auto checkpoint = line.find("checkpoint")) {
    if (!std::filesystem::is_directory(*checkpoint)) fail(Exit::io, "--checkpoint {}: no such folder", *checkpoint);
    return CheckpointReader::open(*checkpoint);
  }
  const auto run = line.get("run");
  if (!std::filesystem::is_directory(run)) fail(Exit::io, "--run {}: no such folder", run);
  if (auto found = find_checkpoint(run, Group())) return *found;
  throw Error(Exit::io, fmt::format("{} has no checkpoint yet", run), "checkpoint.every says how often a run saves");
}

int run_export(const CommandLine& line) {
  const auto loaded = load_config<ExportConfig>(line);
  if (loaded.printed) return 0;
  const ExportRequest request{
      .checkpoint = checkpoint_of(line), .out = line.get("out"), .weights = loaded.root.weights};
  if (line.dry_run) {
    fmt::print("dry run: nothing was written; {} would be made of {}\n", request.out.string(),
               request.checkpoint.path().string());
    return 0;
  }
  export_checkpoint(request);
  fmt::print("{}: a diffusers folder; try  millrace generate --pipeline {} --prompt \"...\" --out images\n",
             request.out.string(), request.out.string());
  return 0;
}

}  // namespace

Command export_command() {
  return {"export",
          "checkpoint -> diffusers folder",
          "--run DIR|--checkpoint DIR --out DIR [weights=ema|raw|both]",
          {{"run", "DIR", "a run folder: its newest valid checkpoint"},
           {"checkpoint", "DIR", "one checkpoint"},
           {"out", "DIR", "the new folder"}},
          false,
          run_export,
          schema_of<ExportConfig>};
}

}  // namespace millrace
