#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "json_fields.h"
#include "millrace/core/run_files.h"
#include "millrace/core/text.h"
#include "millrace/core/units.h"
#include "plot.h"
#include "run_events.h"
#include "sections.h"

namespace millrace {
namespace {

// By the README.md that `export` puts into its folders.
bool is_of_step(const std::filesystem::path& pipeline, const std::string& step) {
  std::ifstream in(pipeline / "README.md");
  for (std::string line; std::getline(in, line);)
    if (line == fmt::format("| steps | {} |", step)) return true;
  return false;
}

// Of a run that is done. An autoencoder's folder is written at its end; a U-Net's may be of an earlier end.
std::string model_of(const RunRecord& run) {
  const auto step = text_of(run.state, "step");
  const auto usual = run.folder / run_file::pipeline, other = run.folder / ("pipeline-" + step);
  const bool is_autoencoder = run.settings.contains("autoencoder.kl");
  std::error_code ignored;
  const bool is_taken = std::filesystem::exists(usual, ignored);
  if (is_taken && (is_autoencoder || is_of_step(usual, step)))
    return fmt::format("{} is its model, a diffusers folder", usual.string());
  if (is_of_step(other, step)) return fmt::format("{} is its model, a diffusers folder", other.string());
  if (text_of(run.state, "checkpoint").empty())
    return "nothing was saved (checkpoint.every=null): there is nothing to export";
  return fmt::format("millrace export --run {} --out {}", shell_word(run.folder.string()),
                     shell_word((is_taken ? other : usual).string()));
}

// By its name: where the report is made, a path that the run knows may lead nowhere.
bool has_checkpoint(const RunRecord& run, const std::filesystem::path& checkpoint) {
  std::error_code ignored;
  return checkpoint.has_filename() &&
         std::filesystem::exists(checkpoints_in(run.folder) / checkpoint.filename(), ignored);
}

// checkpoint.resume with a path, or never, would go back there once there is another checkpoint of its own. Restarts by
// slurm/ and supervise have another one than people type.
std::string same_command(const RunRecord& run) {
  const auto typed = text_of(run.environment, "typed_resume"), newest = text_of(run.state, "checkpoint");
  const auto resume = typed.empty() ? run.setting("checkpoint.resume") : typed;
  const bool goes_back = !resume.empty() && resume != "auto" && newest != resume && has_checkpoint(run, newest);
  return goes_back ? "the same command with checkpoint.resume=auto" : "the same command again";
}

std::string next_command(const RunRecord& run) {
  const auto state = text_of(run.state, "state"), folder = run.folder.string();
  if (state == "done") return model_of(run);
  if (state == "running")
    return fmt::format("wait; {}/log says what it does. If it was killed, {}", folder, same_command(run));
  if (state == "failed") return "the events below say why; docs/operations.md says what to do";
  return same_command(run) + ": it goes on from its newest checkpoint";
}

std::string state_of(const RunRecord& run) {
  const auto state = text_of(run.state, "state"), reason = text_of(run.state, "reason");
  if (state.empty()) return "unknown: there is no STATE";
  return reason.empty() ? state : state + ": " + reason;
}

// The last one, and since when there has been none.
std::string loss_of(const RunRecord& run) {
  const auto losses = smoothed(run.series("loss"));
  auto last = losses.values.size();
  while (last > 0 && !std::isfinite(losses.values[last - 1])) --last;
  auto text = last > 0 ? fmt::format("{} (smoothed)", short_number(losses.values[last - 1])) : std::string();
  if (last < losses.values.size())
    text += fmt::format("{}not a number since step {}", last > 0 ? ", " : "", losses.steps[last]);
  return text;
}

}  // namespace

Section summary_section(Runs runs) {
  RunTable table(runs);
  table.add("state", state_of);
  table.add("step", [](const RunRecord& run) {
    const auto duration = run.setting("duration");
    const double last = run.last("step");
    const auto step = std::isfinite(last) ? fmt::format("{:.0f}", last) : text_of(run.state, "step");
    return duration.empty() ? step : fmt::format("{} of {}", step, duration);
  });
  table.add("images", [](const RunRecord& run) {
    return std::isfinite(run.last("samples")) ? format_count(run.last("samples")) : std::string();
  });
  table.add("time", [](const RunRecord& run) {
    return run.begin.empty() ? std::string() : fmt::format("{} to {} UTC", for_people(run.begin), for_people(run.end));
  });
  table.add("loss", loss_of);
  table.add("validation loss", [](const RunRecord& run) { return with_unit(run.last("validation_loss"), ""); });
  if (std::ranges::any_of(runs, tells_unweighted_losses))
    table.add("validation loss without weights", [](const RunRecord& run) {
      const auto losses = unweighted_validation_loss(run);
      return losses.values.empty() ? std::string() : with_unit(losses.values.back(), "");
    });
  table.add("speed",
            [](const RunRecord& run) { return with_unit(usual_now(run, run.series("images_per_second")), "img/s"); });
  table.add("waits for samples", [](const RunRecord& run) { return percent(waiting_now(run)); });
  table.add("updates left out", [](const RunRecord& run) {
    return run.last("skipped") > 0 ? fmt::format("{:.0f}", run.last("skipped")) : std::string();
  });
  table.add("memory", [](const RunRecord& run) { return with_unit(run.last("memory_gib"), "GiB a trainer"); });
  table.add("checkpoint", [](const RunRecord& run) { return text_of(run.state, "checkpoint"); });
  table.add("next", next_command);
  return {"Summary", {table.take()}};
}

}  // namespace millrace
