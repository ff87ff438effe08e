// plan: what a run will need, reach and cost, before there is a machine.
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "command.h"
#include "load_config.h"
#include "millrace/io/json.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/models/presets.h"
#include "output.h"
#include "plan/run_forecast.h"
#include "plan/start_command.h"

namespace millrace {
namespace {

struct PlanRoot : TrainConfig {
  PlanConfig plan;

  void describe(config::Section& section) {
    section.section("plan", plan, "what is known about the cluster");
    TrainConfig::describe(section);
  }
};

// What only a run itself needs may be missing.
PlanRoot defaults() {
  PlanRoot root;
  root.run.dir = {unset_run_dir, true};
  root.model.pipeline = {unset_pipeline, true};
  root.data.train.path = {unset_archives};
  return root;
}

// Of model.pipeline, else those of Stable Diffusion 2.
RunShapes shapes_of(const TrainConfig& config) {
  RunShapes shapes;
  const auto& file = config.model.unet.config;
  if (config.model.pipeline.value == unset_pipeline) {
    const auto preset = preset_configs(Preset::sd2);
    shapes = {.unet = preset.unet, .vae = preset.vae, .text_encoder = preset.text_encoder};
  } else {
    const auto folder = PipelineFolder::open(config.model.pipeline.value);
    if (!file) shapes.unet = folder.config("unet");
    shapes.vae = folder.config("vae");
    shapes.text_encoder = folder.config("text_encoder");
  }
  if (file) {
    shapes.unet = read_json_object(*file);
    shapes.unet_file = *file;
  }
  return shapes;
}

const char* word_of(PlannedRole::Source source) {
  switch (source) {
    case PlannedRole::Source::measured:
      return "measured";
    case PlannedRole::Source::published:
      return "published";
    case PlannedRole::Source::peak:
      break;
  }
  return "from the peak rate";
}

// 0 stands for "there is none".
template <class Number>
nlohmann::ordered_json number_or_null(Number number) {
  if (number > 0) return number;
  return nullptr;
}

nlohmann::ordered_json to_json(const RunForecast& forecast, const std::vector<std::string>& start) {
  using Json = nlohmann::ordered_json;
  Json json;
  for (const auto& role : forecast.roles)
    json["roles"].push_back({{"name", to_string(role.kind)},
                             {"ranks", role.ranks},
                             {"gpu", role.gpu->name},
                             {"memory_gib", role.memory_gib},
                             {"images_per_second", number_or_null(role.images_per_second)},
                             {"batch", role.batch},
                             {"rate", role.images_per_second > 0 ? Json(word_of(role.source)) : Json()}});
  json["images_per_second"] = forecast.images_per_second;
  json["limit"] = forecast.is_limited_by_encoders ? "encoders" : "trainers";
  json["balanced_encoders"] = number_or_null(forecast.balanced_encoders);
  json["encoders_per_trainer"] = number_or_null(forecast.encoders_per_trainer);
  json["accumulation"] = forecast.accumulation;
  json["steps"] = forecast.steps;
  json["samples"] = forecast.samples;
  json["days"] = forecast.seconds / 86400;
  json["gpu_hours"] = forecast.gpu_hours;
  json["cost"] = forecast.cost ? Json(*forecast.cost) : Json();
  json["start"] = fmt::format("{}", fmt::join(start, " "));
  return json;
}

// Wrapped, so that a shell still reads it as one line.
std::string wrapped(const std::vector<std::string>& words) {
  constexpr std::size_t width = 108;
  std::string text;
  std::size_t line = 0;
  for (const auto& word : words) {
    const bool fits = line + word.size() < width;
    if (!text.empty()) text += fits ? " " : " \\\n      ";
    text += word;
    line = fits ? line + 1 + word.size() : word.size();
  }
  return text;
}

std::string describe_limit(const RunForecast& forecast) {
  if (forecast.roles.size() == 1)
    return forecast.is_limited_by_encoders
               ? "encoders: most of the time goes into encoding; a latent cache would save it"
               : "trainers: most of the time goes into training";
  if (forecast.balanced_encoders == 0) return "trainers: nothing has to be encoded";
  int encoders = 0;
  for (const auto& role : forecast.roles)
    if (role.kind == PlannedRole::Kind::encoders) encoders += role.ranks;
  auto each = fmt::format("{:.2f} a trainer", forecast.encoders_per_trainer);
  if (forecast.balanced_encoders > forecast.stripes)
    each += fmt::format(", more than data.stripes = {} can feed", forecast.stripes);
  return forecast.is_limited_by_encoders ? fmt::format("encoders: {} of their kind would balance, {}; there are {}",
                                                       forecast.balanced_encoders, each, encoders)
                                         : fmt::format("trainers: {} of the {} encoders would balance, {}",
                                                       forecast.balanced_encoders, encoders, each);
}

// "; 4 threads read and transform, 192 in all", where the number is set and these ranks do that.
std::string describe_readers(const PlannedRole& role, const TrainConfig& config) {
  if (!config.data.threads.value || !role.encodes()) return {};
  const int threads = *config.data.threads.value;
  return fmt::format("; {} thread{} read and transform, {} in all", threads, threads == 1 ? "" : "s",
                     threads * role.ranks);
}

std::string describe_checkpoints(const CheckpointSpace& space) {
  return fmt::format(
      "{}: {} checkpoints of {}{}", format_bytes(space.in_all()), space.keep + 1, format_bytes(space.bytes),
      space.for_good > 0 ? fmt::format(", and about {} that checkpoint.keep_every keeps for good", space.for_good)
                         : "");
}

void print(const RunForecast& forecast, const std::vector<NodeGroup>& cluster, const TrainConfig& config,
           const std::vector<std::string>& start) {
  const auto row = [](const char* name, const std::string& text) { print_out(fmt::format("{:<12}{}", name, text)); };
  row("cluster", to_string(cluster));
  for (const auto& role : forecast.roles) {
    if (role.images_per_second == 0) {
      row("", fmt::format("{} {} on {}: read latents", role.ranks, to_string(role.kind), role.gpu->name));
      continue;
    }
    row("", fmt::format("{} {} on {}: {:.4g} img/s ({:.4g} each, {})", role.ranks, to_string(role.kind), role.gpu->name,
                        role.images_per_second, role.images_per_second / role.ranks, word_of(role.source)));
    row("", fmt::format("  batch {}, {:.1f}{} GiB each{}{}", role.batch, role.memory_gib,
                        role.gpu->is_cpu() ? "" : fmt::format(" of {:.0f}", role.gpu->memory_gib),
                        role.fitting_batch > role.batch && config.batch.micro.value
                            ? fmt::format("; {} would fit", role.fitting_batch)
                            : "",
                        describe_readers(role, config)));
  }
  row("batch", fmt::format("{} = {} in {} turn{} a trainer", config.batch.global, forecast.micro_batch,
                           forecast.accumulation, forecast.accumulation == 1 ? "" : "s"));
  row("speed", fmt::format("{:.4g} img/s", forecast.images_per_second));
  row("limit", describe_limit(forecast));
  row("length",
      fmt::format("{} steps, {} samples: {:.1f} days, {} GPU hours", format_count(forecast.steps),
                  format_count(forecast.samples), forecast.seconds / 86400, format_count(forecast.gpu_hours)));
  if (forecast.checkpoints) row("disk", describe_checkpoints(*forecast.checkpoints));
  row("cost", forecast.cost ? format_count(*forecast.cost)
                            : fmt::format("plan.prices has none for {}", fmt::join(forecast.without_price, ", ")));
  row("start", wrapped(start));
  if (config.encode.cache)
    print_out(
        "encode.cache is taken as empty: every image is encoded. Filled, it counts with data.train.type=latents.");
  print_out("Speeds add up over GPUs here: what the network costs is not in them; `millrace preflight` measures it.");
}

int run_plan_command(const CommandLine& line) {
  const auto cluster = parse_cluster(line.get("nodes"));
  const auto loaded = load_config<PlanRoot>(
      line, [](const auto& root, auto& report) { check(static_cast<const TrainConfig&>(root), report); },
      /*prints=*/true, defaults());
  if (loaded.printed) return 0;
  const auto& root = loaded.root;
  const auto forecast = forecast_run(cluster, root, root.plan, shapes_of(root));
  const auto start = start_command(forecast, cluster, root, line.inputs);
  if (line.has("json")) {
    print_out(to_json(forecast, start).dump());
  } else {
    print(forecast, cluster, root, start);
  }
  return 0;
}

}  // namespace

Command plan_command() {
  return {.name = "plan",
          .summary = "what a run will need, reach and cost on a cluster, before there is one",
          .usage = "--nodes SPEC [--json] [--config FILE] [KEY=VALUE]...",
          .options = {{"nodes", "SPEC", "COUNTxGPUSxMODEL joined by \" + \", as in \"4x8xa100-80g + 48x1xa10g\""},
                      {"json", "", "the plan as one JSON object", OptionSpec::Takes::nothing}},
          .run = run_plan_command,
          .schema = schema_of<PlanRoot>,
          .prints = true};
}

}  // namespace millrace
