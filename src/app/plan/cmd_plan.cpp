// plan: what a run will need, reach and cost, before there is a machine.
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "command.h"
#include "millrace/io/json.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/models/presets.h"
#include "plan/run_plan.h"

namespace millrace {
namespace {

struct PlanRoot : TrainConfig {
  PlanConfig plan;

  void describe(config::Section& section) {
    section.section("plan", plan, "what is known about the cluster");
    TrainConfig::describe(section);
  }
};

constexpr const char* built_in = "Stable Diffusion 2";  // stands for model.pipeline

// What only a run itself needs may be missing.
PlanRoot defaults() {
  PlanRoot root;
  root.run.dir = {"RUN", true};
  root.model.pipeline = {built_in, true};
  root.data.train.path = {"ARCHIVES"};
  return root;
}

// Of model.pipeline, else those of Stable Diffusion 2.
RunShapes shapes_of(const TrainConfig& config) {
  RunShapes shapes;
  if (config.model.pipeline.value == built_in) {
    const auto preset = preset_configs(Preset::sd2);
    shapes = {preset.unet, preset.vae, preset.text_encoder};
  } else {
    const auto folder = PipelineFolder::open(config.model.pipeline.value);
    shapes = {folder.config("unet"), folder.config("vae"), folder.config("text_encoder")};
  }
  if (config.model.unet.config) shapes.unet = read_json_object(*config.model.unet.config);
  return shapes;
}

nlohmann::ordered_json to_json(const RunPlan& plan) {
  nlohmann::ordered_json json;
  for (const auto& role : plan.roles)
    json["roles"].push_back({{"name", role.name},
                             {"ranks", role.ranks},
                             {"gpu", role.gpu->name},
                             {"memory_gib", role.memory_gib},
                             {"images_per_second", role.images_per_second},
                             {"batch", role.batch},
                             {"rate", role.is_measured         ? "measured"
                                      : role.gpu->is_published ? "published"
                                                               : "from the peak rate"}});
  json["images_per_second"] = plan.images_per_second;
  json["limit"] = plan.is_limited_by_encoders ? "encoders" : "trainers";
  json["accumulation"] = plan.accumulation;
  json["steps"] = plan.steps;
  json["samples"] = plan.samples;
  json["days"] = plan.seconds / 86400;
  json["gpu_hours"] = plan.gpu_hours;
  json["cost"] = plan.cost ? nlohmann::ordered_json(*plan.cost) : nullptr;
  return json;
}

const char* source_of(const PlannedRole& role) {
  if (role.is_measured) return "plan.rates";
  return role.gpu->is_published ? "published for this GPU" : "a share of its peak rate";
}

// "a100", or what tells two kinds of one name apart.
std::string driver_name(const GpuModel& gpu, const std::vector<NodeGroup>& cluster) {
  const bool is_shared =
      std::ranges::any_of(cluster, [&](const auto& group) { return group.gpu != &gpu && group.gpu->part == gpu.part; });
  return is_shared ? fmt::format("{:.0f}GB", gpu.memory_gib) : std::string(gpu.part);
}

// How Slurm is asked for it.
std::string sbatch_line(const RunPlan& plan, const std::vector<NodeGroup>& cluster, const TrainConfig& config) {
  int nodes = 0, ranks = 0, fewest = cluster.front().gpus_per_node;
  std::vector<std::string> features;
  for (const auto& group : cluster) {
    nodes += group.nodes;
    ranks += group.gpus();
    fewest = std::min(fewest, group.gpus_per_node);
    features.push_back(fmt::format("{}*{}", group.gpu->part, group.nodes));
  }
  const auto constraint = cluster.size() == 1 ? std::string() : fmt::format("[{}]", fmt::join(features, "&"));
  auto line = fmt::format(
      "sbatch -N{} -n{} -C '{}' --gpus-per-node={} slurm/{} run.dir=RUN model.pipeline=PIPELINE \\\n"
      "      data.train.path=ARCHIVES transform.resolution={} batch.global={} batch.micro={}",
      nodes, ranks, constraint, fewest, config.transform.resolution <= 256 ? "phase1_256.sbatch" : "phase2_512.sbatch",
      config.transform.resolution, config.batch.global, config.batch.micro);
  const auto is_encoder = [](const PlannedRole& role) { return role.name == "encoders"; };
  const auto encoders = std::ranges::count_if(plan.roles, is_encoder);
  if (encoders == 1 && plan.roles.size() == 2 && cluster.size() > 1)
    line += fmt::format(" roles.producer_gpu={} roles.trainer_gpu={}", driver_name(*plan.roles[1].gpu, cluster),
                        driver_name(*plan.roles[0].gpu, cluster));
  if (encoders == 1 && cluster.size() == 1) line += fmt::format(" roles.producers={}", plan.roles[1].ranks);
  return line;
}

std::string describe_limit(const RunPlan& plan) {
  if (plan.roles.size() == 1)
    return plan.is_limited_by_encoders ? "encoders: most of the time goes into encoding; encode.cache would save it"
                                       : "trainers: most of the time goes into training";
  if (plan.balanced_encoders == 0) return "trainers: nothing has to be encoded";
  int encoders = 0;
  for (const auto& role : plan.roles)
    if (role.name == "encoders") encoders += role.ranks;
  return plan.is_limited_by_encoders
             ? fmt::format("encoders: {} of their kind would balance, there are {}", plan.balanced_encoders, encoders)
             : fmt::format("trainers: {} of the {} encoders would balance", plan.balanced_encoders, encoders);
}

void print(const RunPlan& plan, const std::vector<NodeGroup>& cluster, const TrainConfig& config) {
  const auto row = [](const char* name, const std::string& text) { print_out(fmt::format("{:<12}{}", name, text)); };
  row("cluster", to_string(cluster));
  for (const auto& role : plan.roles) {
    row("", fmt::format("{} {} on {}: {:.4g} img/s ({:.4g} each, {})", role.ranks, role.name, role.gpu->name,
                        role.images_per_second, role.images_per_second / role.ranks, source_of(role)));
    row("", fmt::format("  batch {}, {:.1f}{} GiB each{}", role.batch, role.memory_gib,
                        role.gpu->is_cpu() ? "" : fmt::format(" of {:.0f}", role.gpu->memory_gib),
                        role.fitting_batch > role.batch ? fmt::format("; {} would fit", role.fitting_batch) : ""));
  }
  row("batch", fmt::format("{} = {} in {} turn{} a trainer", config.batch.global, config.batch.micro, plan.accumulation,
                           plan.accumulation == 1 ? "" : "s"));
  row("speed", fmt::format("{:.4g} img/s", plan.images_per_second));
  row("limit", describe_limit(plan));
  row("length", fmt::format("{} steps, {} samples: {:.1f} days, {} GPU hours", format_count(plan.steps),
                            format_count(plan.samples), plan.seconds / 86400, format_count(plan.gpu_hours)));
  row("cost", plan.cost ? format_count(*plan.cost)
                        : fmt::format("plan.prices has none for {}", fmt::join(plan.without_price, ", ")));
  row("start", sbatch_line(plan, cluster, config));
  print_out("Speeds add up over GPUs here: what the network costs is not in them; `millrace preflight` measures it.");
}

int run_plan_command(const CommandLine& line) {
  const auto cluster = parse_cluster(line.get("nodes"));
  const auto loaded = load_config<PlanRoot>(
      line, [](const auto& root, auto& report) { check(static_cast<const TrainConfig&>(root), report); },
      /*prints=*/true, defaults());
  if (loaded.printed) return 0;
  const auto& root = loaded.root;
  const auto plan = plan_run(cluster, root, root.plan, shapes_of(root));
  if (line.has("json")) {
    print_out(to_json(plan).dump());
  } else {
    print(plan, cluster, root);
  }
  return 0;
}

}  // namespace

Command plan_command() {
  return {"plan",
          "what a run will need, reach and cost on a cluster, before there is one",
          "--nodes SPEC [--json] [--config FILE] [KEY=VALUE]...",
          {{"nodes", "SPEC", "COUNTxGPUSxMODEL joined by \" + \", as in \"4x8xa100-80g + 48x1xa10g\""},
           {"json", "", "the plan as one JSON object", OptionSpec::Takes::nothing}},
          false,
          run_plan_command,
          schema_of<PlanRoot>};
}

}  // namespace millrace
