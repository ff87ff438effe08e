// report: runs as one page.
#include <filesystem>

#include "app_config.h"
#include "command.h"
#include "millrace/config/flatten.h"
#include "millrace/core/files.h"
#include "millrace/report/report.h"
#include "output.h"

namespace millrace {
namespace {

// What a run is compared with that was started without --config.
Template defaults_of(const RunRecord& run) {
  const bool is_autoencoder = run.settings.contains("autoencoder.kl");
  return {"", config::flatten(is_autoencoder ? config::dump_yaml(AutoencoderTrainConfig{})
                                             : config::dump_yaml(TrainConfig{}))};
}

int run_report(const CommandLine& line) {
  if (line.paths.empty()) fail(Exit::usage, "which run? millrace report RUN...");
  if (line.paths.size() > 1 && !line.has("out"))
    fail(Exit::usage, "--out FILE.html has to say where a report of several runs goes");
  const fs::path out = line.find("out").value_or((fs::path(line.paths[0]) / "report.html").string());
  const fs::path twin = fs::path(out).replace_extension(".md");
  if (twin == out)
    fail(Exit::usage, "--out {}: the Markdown twin has that name; give one that ends in .html", out.string());
  std::vector<RunRecord> runs;
  for (const auto& path : line.paths) {
    auto& run = runs.emplace_back(read_run(path));
    if (run.base.name.empty()) run.base = defaults_of(run);
  }
  tell_apart(runs);
  if (line.dry_run) {
    say("dry run: nothing was written; the report would be {}\n", out.string());
    return 0;
  }
  const auto report = make_report(runs);
  if (out.has_parent_path()) fs::create_directories(out.parent_path());
  write_file_atomically(out, render_html(report));
  write_file_atomically(twin, render_markdown(report));
  say("{} (and {})\n", out.string(), twin.string());
  return 0;
}

}  // namespace

Command report_command() {
  return {.name = "report",
          .summary = "runs as one HTML page and its Markdown twin",
          .usage = "RUN... [--out FILE.html]",
          .options = {{"out", "FILE.html", "where it goes; default RUN/report.html. The .md twin lies beside it"}},
          .takes_paths = true,
          .run = run_report};
}

}  // namespace millrace
