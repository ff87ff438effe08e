#include "millrace/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/units.h"
#include "millrace/image/decode.h"
#include "millrace/image/resize_image.h"
#include "plot.h"

namespace millrace {
namespace {

using Runs = std::span<const RunRecord>;
using TellRun = std::function<std::string(const RunRecord&)>;

constexpr std::size_t most_pictures = 6, most_events = 60;
constexpr int widest_picture = 720;

// Of the second half of a run, the median: its beginning tunes and fills queues.
double usual(const Series& series) {
  std::vector<double> values(series.values.begin() + static_cast<std::ptrdiff_t>(series.values.size() / 2),
                             series.values.end());
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::nan("");
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Exponential, over a hundredth of the run.
Series smoothed(const Series& series) {
  const double keep = 1 - 1 / std::max(5.0, static_cast<double>(series.values.size()) / 100);
  Series result = series;
  double sum = 0, weight = 0;
  for (double& value : result.values) {
    if (!std::isfinite(value)) continue;
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    value = sum / weight;
  }
  return result;
}

// At the steps that both have.
Series ratio(const Series& part, const Series& whole, double factor) {
  Series result;
  for (std::size_t i = 0, k = 0; i < part.steps.size() && k < whole.steps.size();) {
    if (part.steps[i] == whole.steps[k]) {
      result.steps.push_back(part.steps[i]);
      result.values.push_back(factor * part.values[i++] / whole.values[k++]);
    } else {
      part.steps[i] < whole.steps[k] ? ++i : ++k;
    }
  }
  return result;
}

std::string text_of(const nlohmann::json& json, const char* key) {
  if (!json.is_object()) return "";
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::string setting(const RunRecord& run, const std::string& key) {
  const auto found = run.settings.find(key);
  return found == run.settings.end() ? "" : found->second;
}

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", 100 * share) : "";
}

// Empty where there is no number.
std::string with_unit(double value, std::string_view unit) {
  return std::isfinite(value) ? fmt::format("{} {}", short_number(value), unit) : "";
}

double waiting_share(const RunRecord& run) {
  return usual(ratio(run.series("data_wait_ms"), run.series("step_ms"), 1));
}

std::string next_command(const RunRecord& run) {
  const auto state = text_of(run.state, "state"), folder = run.folder.string();
  if (state == "done") return fmt::format("millrace export --run {} --out {}/pipeline", folder, folder);
  if (state == "running") return fmt::format("wait; {}/log says what it does", folder);
  if (state == "failed") return "the events below say why; docs/operations.md says what to do";
  return "the same command again: it goes on from its newest checkpoint";
}

std::string state_of(const RunRecord& run) {
  const auto state = text_of(run.state, "state"), reason = text_of(run.state, "reason");
  if (state.empty()) return "unknown: there is no STATE";
  return reason.empty() ? state : state + ": " + reason;
}

// A row per thing, a column per run. Rows that no run fills are left out.
class RunTable {
 public:
  explicit RunTable(Runs runs) : runs_(runs) {
    if (runs.size() == 1) return;
    table_.header.emplace_back();
    for (const auto& run : runs) table_.header.push_back(run.name);
  }
  void add(const std::string& name, const TellRun& tell) {
    std::vector<std::string> row = {name};
    for (const auto& run : runs_) row.push_back(tell(run));
    if (std::any_of(row.begin() + 1, row.end(), [](const auto& cell) { return !cell.empty(); }))
      table_.rows.push_back(std::move(row));
  }
  bool is_empty() const { return table_.rows.empty(); }
  Table take() { return std::move(table_); }

 private:
  Runs runs_;
  Table table_;
};

Section summary(Runs runs) {
  RunTable table(runs);
  table.add("state", state_of);
  table.add("step", [](const RunRecord& run) {
    const auto duration = setting(run, "duration");
    const double last = run.last("step");
    const auto step = std::isfinite(last) ? fmt::format("{:.0f}", last) : text_of(run.state, "step");
    return duration.empty() ? step : fmt::format("{} of {}", step, duration);
  });
  table.add("images", [](const RunRecord& run) {
    return std::isfinite(run.last("samples")) ? format_count(run.last("samples")) : std::string();
  });
  table.add("time", [](const RunRecord& run) {
    return run.begin.empty() ? std::string() : fmt::format("{} to {}", run.begin, run.end);
  });
  table.add("loss", [](const RunRecord& run) {
    const auto& values = smoothed(run.series("loss")).values;
    return values.empty() ? std::string() : fmt::format("{} (smoothed)", short_number(values.back()));
  });
  table.add("validation loss", [](const RunRecord& run) { return with_unit(run.last("validation_loss"), ""); });
  table.add("speed", [](const RunRecord& run) { return with_unit(usual(run.series("images_per_second")), "img/s"); });
  table.add("waits for samples", [](const RunRecord& run) { return percent(waiting_share(run)); });
  table.add("updates left out", [](const RunRecord& run) {
    return run.last("skipped") > 0 ? fmt::format("{:.0f}", run.last("skipped")) : std::string();
  });
  table.add("memory", [](const RunRecord& run) { return with_unit(run.last("memory_gib"), "GiB a trainer"); });
  table.add("checkpoint", [](const RunRecord& run) { return text_of(run.state, "checkpoint"); });
  table.add("next", next_command);
  return {"Summary", {table.take()}};
}

std::string limit_of(const RunRecord& run) {
  const double wait = waiting_share(run), idle = usual(run.series("producer_stages/send_wait"));
  if (!std::isfinite(wait)) return "Too few steps to tell.";
  if (wait > 0.05)
    return fmt::format(
        "The producers: trainers wait {} of their time for samples: more producers, more data.threads or "
        "encode.cache help up to that.",
        percent(wait));
  if (idle > 0.5) return fmt::format("The trainers: producers wait {} of their time for them.", percent(idle));
  return fmt::format("The trainers, who wait {} of their time for samples: producers keep up.", percent(wait));
}

// What others have published with a U-Net of Stable Diffusion 2.
Table published_rates() {
  return {{"published rates, img/s of one GPU", "256 px", "512 px", "by"},
          {{"A100-80G, encoders on the same GPU", "38", "12", "open-diffusion"},
           {"A100, from latents", "137.5", "36.3", "MosaicML"},
           {"A100-40G, from latents", "179.5", "49.7", "Anyscale"},
           {"H200, from latents", "–", "149.6", "MLPerf Training 5.0, best of 8 GPUs"}}};
}

Section speed(Runs runs) {
  Section section{"What limits the speed", {}};
  for (const auto& run : runs)
    section.blocks.emplace_back(Paragraph{(runs.size() > 1 ? run.name + ": " : "") + limit_of(run)});
  RunTable table(runs);
  table.add("trained", [](const RunRecord& run) { return with_unit(usual(run.series("images_per_second")), "img/s"); });
  table.add("a step", [](const RunRecord& run) { return with_unit(usual(run.series("step_ms")), "ms"); });
  table.add("encoded", [](const RunRecord& run) {
    const double rate = usual(run.series("encode_images_per_second"));
    return rate > 0 ? with_unit(rate, "img/s while encoding") : std::string();
  });
  for (const char* stage : {"read", "decode", "transform", "tokenise", "encode", "encode_wait", "send", "send_wait"})
    table.add(fmt::format("producers: {}", stage), [stage](const RunRecord& run) {
      return percent(usual(run.series(fmt::format("producer_stages/{}", stage))));
    });
  if (!table.is_empty()) section.blocks.emplace_back(table.take());
  section.blocks.emplace_back(published_rates());
  return section;
}

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

Section training(Runs runs) {
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

std::int64_t count_in(const nlohmann::json& json, const std::string& key) {
  if (!json.is_object() || !json.contains(key) || !json[key].is_number_integer()) return 0;
  return json[key].get<std::int64_t>();
}

nlohmann::json rejected_of(const RunRecord& run) {
  return run.ledger.is_object() ? run.ledger.value("rejected", nlohmann::json::object()) : nlohmann::json::object();
}

Section rejected_rows(Runs runs) {
  RunTable table(runs);
  for (const char* key : {"rows", "accepted"})
    table.add(key, [key](const RunRecord& run) {
      return run.ledger.is_object() ? fmt::format("{}", count_in(run.ledger, key)) : std::string();
    });
  if (table.is_empty()) return {"Rejected rows", {Paragraph{"There is no ledger yet."}}};
  std::set<std::string> reasons;
  for (const auto& run : runs) {
    const auto rejected = rejected_of(run);
    if (!rejected.is_object()) continue;
    for (const auto& [reason, count] : rejected.items()) reasons.insert(reason);
  }
  for (const auto& reason : reasons)
    table.add(reason, [&](const RunRecord& run) {
      const auto count = count_in(rejected_of(run), reason);
      const auto rows = std::max<std::int64_t>(1, count_in(run.ledger, "rows"));
      return fmt::format("{} ({})", count, percent(static_cast<double>(count) / static_cast<double>(rows)));
    });
  Section section{"Rejected rows", {table.take()}};
  if (reasons.empty()) section.blocks.emplace_back(Paragraph{"None so far."});
  return section;
}

std::optional<Image> thumbnail(const fs::path& file) try {
  auto decoded = decode_image(read_file(file));
  auto* image = std::get_if<Image>(&decoded);
  if (!image) return std::nullopt;
  if (image->width <= widest_picture) return std::move(*image);
  const auto height = static_cast<std::int64_t>(image->height) * widest_picture / image->width;
  return resize_image(*image, widest_picture, std::max(1, static_cast<int>(std::min<std::int64_t>(height, 4000))));
} catch (const Error&) {
  return std::nullopt;
}

// The first, the last, and some evenly between.
Section pictures(Runs runs) {
  Section section{"Pictures", {}};
  const auto of_each = std::max<std::size_t>(1, most_pictures / runs.size());
  for (const auto& run : runs) {
    const auto count = std::min(of_each, run.pictures.size());
    for (std::size_t i = 0; i < count; ++i) {
      const auto& picture =
          run.pictures[(run.pictures.size() - 1) * (i + 1 == count ? 1 : i) / (i + 1 == count ? 1 : count - 1)];
      if (auto image = thumbnail(picture.file))
        section.blocks.emplace_back(Picture{fmt::format("{}, step {}", run.name, picture.step), std::move(*image)});
    }
  }
  return section;
}

// By guidance scale, of one number of evaluation.jsonl.
std::map<std::string, Series> by_scale(const RunRecord& run, const char* key) {
  std::map<std::string, Series> curves;
  for (const auto& line : run.evaluations) {
    if (!line.contains(key) || !line[key].is_number() || !line.contains("step") || !line["step"].is_number_integer())
      continue;
    auto& series = curves[text_of(line, "guidance_scale")];
    series.steps.push_back(line["step"]);
    series.values.push_back(line[key]);
  }
  return curves;
}

// FID over CLIP score, a point for each guidance scale of the newest step that has several: what more guidance costs.
Series guidance_sweep(const RunRecord& run, double clip_unit) {
  std::map<std::int64_t, std::map<std::int64_t, double>> by_step;  // step, CLIP score in units, FID
  for (const auto& line : run.evaluations) {
    const auto is_number = [&](const char* key) { return line.contains(key) && line[key].is_number(); };
    if (!is_number("step") || !is_number("fid") || !is_number("clip_score")) continue;
    by_step[line["step"]][std::llround(line["clip_score"].get<double>() / clip_unit)] = line["fid"];
  }
  for (auto step = by_step.rbegin(); step != by_step.rend(); ++step) {
    if (step->second.size() < 2) continue;
    Series series;
    for (const auto& [clip, fid] : step->second) {
      series.steps.push_back(clip);
      series.values.push_back(fid);
    }
    return series;
  }
  return {};
}

Section evaluation(Runs runs) {
  Table table{{"run", "step", "guidance", "images", "FID", "KID", "CLIP score"}, {}};
  for (const auto& run : runs)
    for (const auto& line : run.evaluations) {
      std::vector<std::string> row = {run.name, text_of(line, "step"), text_of(line, "guidance_scale"),
                                      text_of(line, "images")};
      for (const char* key : {"fid", "kid", "clip_score"})
        row.push_back(line.contains(key) && line[key].is_number() ? short_number(line[key].get<double>()) : "–");
      table.rows.push_back(std::move(row));
    }
  if (table.rows.empty()) return {};
  Section section{"Evaluation", {std::move(table)}};
  for (const auto& [key, title] : {std::pair{"fid", "FID"}, std::pair{"clip_score", "CLIP score"}}) {
    Plot plot{title, "by checkpoint", {}};
    for (const auto& run : runs)
      for (auto& [scale, series] : by_scale(run, key))
        plot.curves.push_back({(runs.size() > 1 ? run.name + " " : "") + "scale " + scale, std::move(series)});
    if (!plot.curves.empty()) section.blocks.emplace_back(std::move(plot));
  }
  Plot sweep{.title = "FID over CLIP score", .unit = "by guidance scale, newest step", .curves = {}, .x_unit = 0.001};
  for (const auto& run : runs)
    if (auto series = guidance_sweep(run, sweep.x_unit); !series.steps.empty())
      sweep.curves.push_back({run.name, std::move(series)});
  if (!sweep.curves.empty()) section.blocks.emplace_back(std::move(sweep));
  return section;
}

Section events(Runs runs) {
  Section section{"Events", {}};
  for (const auto& run : runs) {
    Table table;
    const auto first = run.events.size() > most_events ? run.events.size() - most_events : 0;
    for (auto i = first; i < run.events.size(); ++i) table.rows.push_back({run.events[i].when, run.events[i].what});
    if (runs.size() > 1 && !table.rows.empty()) section.blocks.emplace_back(Paragraph{run.name});
    if (first > 0)
      section.blocks.emplace_back(Paragraph{fmt::format("The last {} of {}.", most_events, run.events.size())});
    if (!table.rows.empty()) section.blocks.emplace_back(std::move(table));
  }
  if (section.blocks.empty()) section.blocks.emplace_back(Paragraph{"No restarts, faults or warnings."});
  return section;
}

// Of one run what is not the default; of several what is not the same for all.
Section configuration(Runs runs, const std::map<std::string, std::string>& defaults) {
  std::set<std::string> keys;
  for (const auto& run : runs)
    for (const auto& entry : run.settings) {
      const auto& key = entry.first;
      const auto usual_value = defaults.find(key);
      const auto is_other = [&](const RunRecord& other) { return setting(other, key) != entry.second; };
      const bool stands_out = runs.size() == 1 ? usual_value == defaults.end() || usual_value->second != entry.second
                                               : std::ranges::any_of(runs, is_other);
      if (stands_out) keys.insert(key);
    }
  RunTable table(runs);
  for (const auto& key : keys) table.add(key, [&](const RunRecord& run) { return setting(run, key); });
  const auto* title = runs.size() == 1 ? "Configuration: what is not the default" : "Configuration: what differs";
  if (table.is_empty()) return {title, {Paragraph{"Nothing."}}};
  return {title, {table.take()}};
}

}  // namespace

Document make_report(Runs runs, const std::map<std::string, std::string>& defaults) {
  Document document;
  for (const auto& run : runs) document.title += (document.title.empty() ? "" : ", ") + run.name;
  document.subtitle = runs.size() == 1 ? runs[0].folder.string() : fmt::format("{} runs side by side", runs.size());
  for (auto& section : {summary(runs), speed(runs), training(runs), rejected_rows(runs), pictures(runs),
                        evaluation(runs), events(runs), configuration(runs, defaults)})
    if (!section.blocks.empty()) document.sections.push_back(section);
  return document;
}

}  // namespace millrace
