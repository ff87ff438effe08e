#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

#include "sections.h"

namespace millrace {
namespace {

Plot losses_of(const RunRecord& run) {
  Plot plot{"Loss", "faint: as logged; strong: smoothed", {}};
  plot.curves.push_back({"", run.series("loss"), /*is_faint=*/true});
  plot.curves.push_back({"training", smoothed(run.series("loss"))});
  plot.curves.push_back({"validation", run.series("validation_loss")});
  plot.curves.push_back({"raw weights", run.series("validation_loss_raw")});
  std::erase_if(plot.curves, [](const Curve& curve) { return curve.points.values.empty(); });
  return plot;
}

Plot losses_of(Runs runs) {
  auto plot = plot_of(runs, "Loss", "smoothed", [](const RunRecord& run) { return smoothed(run.series("loss")); });
  plot.from_zero = false;
  return plot;
}

// Of runs with other weights of the loss than the others have: all without them.
Plot unweighted_losses_of(Runs runs) {
  if (std::ranges::none_of(runs, tells_unweighted_losses)) return {};
  return plot_of(runs, "Validation loss without weights", "all samples alike, whatever objective.snr_gamma is",
                 unweighted_validation_loss);
}

}  // namespace

Plot plot_of(Runs runs, const std::string& title, const std::string& unit,
             const std::function<Series(const RunRecord&)>& series_of) {
  Plot plot{title, unit, {}, /*from_zero=*/true};
  for (const auto& run : runs)
    if (auto series = series_of(run); !series.values.empty())
      plot.curves.push_back({runs.size() == 1 ? "" : run.name, std::move(series)});
  return plot;
}

Plot plot_of(Runs runs, const std::string& title, const std::string& unit, const std::string& field) {
  return plot_of(runs, title, unit, [&](const RunRecord& run) { return run.series(field); });
}

bool tells_unweighted_losses(const RunRecord& run) {
  return !run.series("validation_loss_unweighted").values.empty();
}

bool weights_losses(const RunRecord& run) {
  const auto gamma = run.setting("objective.snr_gamma");
  return !gamma.empty() && gamma != "null";
}

Series unweighted_validation_loss(const RunRecord& run) {
  const auto& told = run.series("validation_loss_unweighted");
  if (weights_losses(run)) return told;
  std::map<std::int64_t, double> losses;  // by step
  for (const auto* series : {&run.series("validation_loss"), &told})
    for (std::size_t i = 0; i < series->steps.size(); ++i) losses[series->steps[i]] = series->values[i];
  Series all;
  for (const auto& [step, loss] : losses) {
    all.steps.push_back(step);
    all.values.push_back(loss);
  }
  return all;
}

Section training_section(Runs runs) {
  Section section{"Training", {}};
  const auto add = [&](Plot plot) {
    if (!plot.curves.empty()) section.blocks.emplace_back(std::move(plot));
  };
  add(runs.size() == 1 ? losses_of(runs[0]) : losses_of(runs));
  if (runs.size() > 1) {
    add(plot_of(runs, "Validation loss", "as each run weights it", "validation_loss"));
    add(unweighted_losses_of(runs));
  }
  add(plot_of(runs, "Gradient norm", "before clipping", "grad_norm"));
  add(plot_of(runs, "Learning rate", "", "lr"));
  add(plot_of(runs, "Speed", "img/s of all trainers", "images_per_second"));
  add(plot_of(runs, "Waiting for samples", "% of a step",
              [](const RunRecord& run) { return ratio(run.series("data_wait_ms"), run.series("step_ms"), 100); }));
  add(plot_of(runs, "Memory", "GiB a trainer", "memory_gib"));
  add(plot_of(runs, "GPU at work", "share of the time, trainers", "gpu_utilization"));
  add(plot_of(runs, "GPU power", "W, trainers", "gpu_watts"));
  if (section.blocks.empty()) section.blocks.emplace_back(Paragraph{"No step has been logged yet."});
  return section;
}

}  // namespace millrace
