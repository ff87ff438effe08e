#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "json_fields.h"
#include "sections.h"

namespace millrace {
namespace {

struct PublishedRate {
  const char* who;
  double at_256, at_512;  // img/s of one GPU; 0: none
};

// With a U-Net of Stable Diffusion 2.
constexpr PublishedRate published[] = {
    {"open-diffusion, A100-80G, encoders on the same GPU", 38, 12},
    {"MosaicML, A100, from latents", 137.5, 36.3},
    {"Anyscale, A100-40G, from latents", 179.5, 49.7},
    {"MLPerf Training 4.1, H100, from latents", 0, 136.7},
    {"MLPerf Training 5.0, H200, from latents", 0, 149.6},
};

double rate_at(const PublishedRate& rate, int pixels) {
  return pixels == 256 ? rate.at_256 : rate.at_512;
}

constexpr std::size_t handful = 5;  // of points

Series of_newest_start(const RunRecord& run, const Series& all) {
  Series newest;
  for (std::size_t i = 0; i < all.steps.size(); ++i) {
    if (all.steps[i] < run.newest_start_step.value_or(0)) continue;
    newest.steps.push_back(all.steps[i]);
    newest.values.push_back(all.values[i]);
  }
  return newest;
}

bool has_earlier_starts(const RunRecord& run) {
  const auto& steps = run.series("step_ms").steps;
  return !steps.empty() && run.newest_start_step.value_or(0) > steps.front();
}

// The newest start may have other ranks and settings than those before: it is judged alone once it has logged enough.
bool tells_enough(const RunRecord& run) {
  return of_newest_start(run, run.series("step_ms")).values.size() >= handful;
}

bool is_judged_by_earlier_starts(const RunRecord& run) {
  return has_earlier_starts(run) && !tells_enough(run);
}

std::string basis_of(const RunRecord& run) {
  if (!has_earlier_starts(run)) return "Here and below: the median of the second half of the run.";
  if (tells_enough(run))
    return fmt::format("Here and below: the median of the second half of the newest start, from step {} on.",
                       *run.newest_start_step);
  return fmt::format(
      "Here and below: the median of the second half of the run, because the newest start, from step {} on, has logged "
      "too little.",
      *run.newest_start_step);
}

std::string limit_by(double wait, double idle) {
  if (wait > 0.05)
    return fmt::format(
        "The producers: trainers wait {} of their time for samples: more producers, more data.threads or "
        "encode.cache help up to that.",
        percent(wait));
  if (idle > 0.5) return fmt::format("The trainers: producers wait {} of their time for them.", percent(idle));
  return fmt::format("The trainers, who wait {} of their time for samples: producers keep up.", percent(wait));
}

std::string limit_of(const RunRecord& run) {
  const double wait = waiting_now(run);
  if (!std::isfinite(wait)) return "Too few steps to tell.";
  return limit_by(wait, usual_now(run, run.series("producer_stages/send_wait"))) + " " + basis_of(run);
}

// How many ranks trained is known of the newest start alone.
double rate_of_one(const RunRecord& run) {
  const auto trainers = trainers_of(run);
  if (trainers.count == 0 || is_judged_by_earlier_starts(run)) return std::nan("");
  return usual_now(run, run.series("images_per_second")) / trainers.count;
}

int resolution_of(const RunRecord& run) {
  return std::atoi(run.setting("transform.resolution").c_str());
}

// Of the U-Net that the published rates are of; also where no checkpoint tells yet.
bool may_have_their_unet(const RunRecord& run) {
  if (!run.model.is_object()) return true;
  return run.model.value("block_out_channels", nlohmann::json()) == nlohmann::json({320, 640, 1280, 1280});
}

bool is_of_a_unet(const RunRecord& run) {
  return !run.setting("objective.prediction").empty();
}

// Why a run's rate is not among the bars; empty where it is.
std::string reason_against_a_bar(const RunRecord& run) {
  const int pixels = resolution_of(run);
  if (pixels != 256 && pixels != 512)
    return fmt::format("it trains at {} pixels, and the rates are of 256 and 512", pixels);
  if (!may_have_their_unet(run)) return "its U-Net is of another size";
  if (trainers_of(run).count == 0) return "without environment.json it is not known how many ranks trained";
  if (is_judged_by_earlier_starts(run)) return "its newest start has logged too little";
  if (!std::isfinite(rate_of_one(run))) return "no speed has been logged yet";
  return "";
}

std::string bar_name(const RunRecord& run) {
  const auto trainers = trainers_of(run);
  const bool is_cached = run.setting("data.train.type") == "latents" ||
                         !(run.setting("encode.cache").empty() || run.setting("encode.cache") == "null");
  return fmt::format("{}, {}{}{}", run.name, trainers.device, trainers.on_gpu ? "" : " (a CPU)",
                     is_cached              ? ", from latents"
                     : trainers.also_encode ? ", encoders on the same device"
                                            : "");
}

void add_bars(Section& section, Runs runs, int pixels) {
  Bars bars{fmt::format("Images a second of one trainer at {} pixels, beside published rates", pixels), "img/s", {}};
  for (const auto& run : runs)
    if (is_of_a_unet(run) && resolution_of(run) == pixels && reason_against_a_bar(run).empty())
      bars.bars.push_back({bar_name(run), rate_of_one(run), /*stands_out=*/true});
  if (bars.bars.empty()) return;
  for (const auto& rate : published)
    if (rate_at(rate, pixels) > 0) bars.bars.push_back({rate.who, rate_at(rate, pixels)});
  section.blocks.emplace_back(std::move(bars));
}

ReportTable table_of_published() {
  ReportTable table{{"published, img/s of one GPU", "256 px", "512 px"}, {}};
  const auto number = [](double rate) { return rate > 0 ? fmt::format("{}", rate) : "–"; };
  for (const auto& rate : published) table.rows.push_back({rate.who, number(rate.at_256), number(rate.at_512)});
  return table;
}

// What a reader of the bars has to know of a run, which is called `name`.
std::string remarks_on(const RunRecord& run, const std::string& name) {
  std::string remarks;
  const auto trainers = trainers_of(run);
  if (trainers.count > 0 && !trainers.on_gpu) remarks = fmt::format(" {} trains on CPUs.", name);
  if (const auto reason = reason_against_a_bar(run); !reason.empty())
    remarks += fmt::format(" {} is not compared: {}.", name, reason);
  return remarks;
}

// A run beside the rates that others have published, where it can be compared, and why where it cannot.
void add_comparison(Section& section, Runs runs) {
  const auto before = section.blocks.size();
  for (const int pixels : {256, 512}) add_bars(section, runs, pixels);
  if (section.blocks.size() == before) section.blocks.emplace_back(table_of_published());
  std::string note = "The published rates are of GPUs, with a U-Net of Stable Diffusion 2 (866 million parameters).";
  for (const auto& run : runs) note += remarks_on(run, runs.size() == 1 ? "This run" : run.name);
  section.blocks.emplace_back(Paragraph{note});
}

// Where nothing was ever above `bound` there is nothing to show.
void add_if_above(Section& section, double bound, Plot plot) {
  const auto is_above = [&](double value) { return value > bound; };
  if (std::ranges::any_of(plot.curves, [&](const Curve& c) { return std::ranges::any_of(c.points.values, is_above); }))
    section.blocks.emplace_back(std::move(plot));
}

}  // namespace

double usual_now(const RunRecord& run, const Series& series) {
  return usual(has_earlier_starts(run) && tells_enough(run) ? of_newest_start(run, series) : series);
}

double waiting_now(const RunRecord& run) {
  return usual_now(run, ratio(run.series("data_wait_ms"), run.series("step_ms"), 1));
}

Trainers trainers_of(const RunRecord& run) {
  Trainers trainers;
  if (!run.environment.is_object()) return trainers;
  std::set<std::string> devices;
  for (const auto& rank : run.environment.value("ranks", nlohmann::json::array())) {
    if (!rank.is_object()) continue;
    const auto role = text_of(rank, "role");
    if (role == "producer") continue;
    ++trainers.count;
    trainers.on_gpu = trainers.on_gpu || text_of(rank, "device") == "cuda";
    trainers.also_encode = trainers.also_encode || role == "trainer and producer";
    if (const auto device = text_of(rank, "device_name"); !device.empty()) devices.insert(device);
  }
  trainers.device = fmt::format("{}", fmt::join(devices, ", "));
  return trainers;
}

Section speed_section(Runs runs) {
  Section section{"What limits the speed", {}};
  for (const auto& run : runs)
    section.blocks.emplace_back(Paragraph{(runs.size() > 1 ? run.name + ": " : "") + limit_of(run)});
  RunTable table(runs);
  table.add("trained",
            [](const RunRecord& run) { return with_unit(usual_now(run, run.series("images_per_second")), "img/s"); });
  table.add("by one trainer", [](const RunRecord& run) {
    const auto rate = with_unit(rate_of_one(run), "img/s");
    return rate.empty() ? rate : fmt::format("{} ({} of them)", rate, trainers_of(run).count);
  });
  table.add("a step", [](const RunRecord& run) { return with_unit(usual_now(run, run.series("step_ms")), "ms"); });
  table.add("encoded", [](const RunRecord& run) {
    const double rate = usual_now(run, run.series("encode_images_per_second"));
    return rate > 0 ? with_unit(rate, "img/s while encoding") : std::string();
  });
  for (const char* stage : {"read", "decode", "transform", "tokenise", "encode", "encode_wait", "send", "send_wait"})
    table.add(fmt::format("producers: {}", stage), [stage](const RunRecord& run) {
      return percent(usual_now(run, run.series(fmt::format("producer_stages/{}", stage))));
    });
  if (!table.is_empty()) section.blocks.emplace_back(table.take());
  add_if_above(section, 1.2, plot_of(runs, "Straggler", "slowest rank / median", "straggler"));
  add_if_above(section, 0, plot_of(runs, "Skipped steps", "since the run began", "skipped"));
  if (std::ranges::any_of(runs, is_of_a_unet)) add_comparison(section, runs);
  return section;
}

}  // namespace millrace
