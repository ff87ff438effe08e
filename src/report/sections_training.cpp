#include <functional>

#include "sections.h"

namespace millrace {
namespace {

// A curve per run; its name only where there are several.
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

}  // namespace

Section training_section(Runs runs) {
  Section section{"Training", {}};
  const auto add = [&](Plot plot) {
    if (!plot.curves.empty()) section.blocks.emplace_back(std::move(plot));
  };
  add(runs.size() == 1 ? losses_of(runs[0]) : losses_of(runs));
  if (runs.size() > 1) add(plot_of(runs, "Validation loss", "", "validation_loss"));
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
