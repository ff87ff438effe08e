#include "plan/start_command.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "millrace/core/text.h"

namespace millrace {
namespace {

// A word that only GPUs of this kind have in their name.
std::string name_of(const GpuModel& gpu, const std::vector<NodeGroup>& cluster) {
  const bool is_shared =
      std::ranges::any_of(cluster, [&](const auto& group) { return group.gpu != &gpu && group.gpu->word == gpu.word; });
  return is_shared ? fmt::format("{:.0f}GB", gpu.memory_gib) : std::string(gpu.word);
}

// The nodes' feature; a site that has both kinds of one GPU will call them as a plan does.
std::string feature_of(const GpuModel& gpu, const std::vector<NodeGroup>& cluster) {
  const auto name = name_of(gpu, cluster);
  return name == gpu.word ? name : std::string(gpu.name);
}

// "a100", or "[a100*4&a10g*48]"; nothing without GPUs.
std::string constraint_of(const std::vector<NodeGroup>& cluster) {
  std::vector<std::pair<std::string, int>> features;  // and how many nodes have it
  for (const auto& group : cluster) {
    const auto feature = feature_of(*group.gpu, cluster);
    const auto found = std::ranges::find(features, feature, &std::pair<std::string, int>::first);
    if (found == features.end()) {
      features.emplace_back(feature, group.nodes);
    } else {
      found->second += group.nodes;
    }
  }
  if (features.size() == 1) return features.front().first;
  std::vector<std::string> terms;
  for (const auto& [feature, nodes] : features) terms.push_back(fmt::format("{}*{}", feature, nodes));
  return fmt::format("[{}]", fmt::join(terms, "&"));
}

// Phase 2: a U-Net that goes on at a higher resolution, from a run whose export is not there yet.
bool goes_on_from_a_run(const TrainConfig& config) {
  return config.model.unet.init == ModelConfig::Init::pretrained && config.transform.resolution > 256 &&
         config.model.pipeline.value == unset_pipeline;
}

void add_nodes(std::vector<std::string>& words, const std::vector<NodeGroup>& cluster, bool is_phase2) {
  const auto& first = cluster.front();
  int nodes = 0, ranks = 0, fewest = first.gpus_per_node;
  for (const auto& group : cluster) {
    nodes += group.nodes;
    ranks += group.gpus();
    fewest = std::min(fewest, group.gpus_per_node);
  }
  const bool is_uniform = std::ranges::all_of(
      cluster, [&](const auto& group) { return group.gpu == first.gpu && group.gpus_per_node == first.gpus_per_node; });
  const bool is_single_kind = is_uniform && !is_phase2;
  words.push_back(fmt::format("-N{}", nodes));
  words.push_back(is_single_kind ? fmt::format("--ntasks-per-node={}", fewest) : fmt::format("-n{}", ranks));
  words.insert(words.end(), {"-C", shell_word(constraint_of(cluster))});
  words.push_back(fmt::format("--gpus-per-node={}", first.gpu->is_cpu() ? 0 : fewest));
  words.push_back(is_phase2        ? "slurm/phase2_512.sbatch"
                  : is_single_kind ? "slurm/variants/single_kind.sbatch"
                                   : "slurm/phase1_256.sbatch");
}

// For what the plan did without.
void add_unset_settings(std::vector<std::string>& words, const TrainConfig& config) {
  if (config.run.dir.value == unset_run_dir) words.emplace_back("run.dir=RUN");
  if (config.model.pipeline.value == unset_pipeline) words.emplace_back("model.pipeline=PIPELINE");
  const bool has_path = config.data.train.path != std::vector<std::string>{unset_archives};
  if (!has_path && config.data.train.type != SourceConfig::Type::synthetic)
    words.emplace_back("data.train.path=ARCHIVES");
}

}  // namespace

std::vector<std::string> start_command(const RunForecast& forecast, const std::vector<NodeGroup>& cluster,
                                       const TrainConfig& config, const config::Inputs& inputs) {
  std::vector<std::string> words;
  // The scripts' own configuration would come first otherwise, which the plan has not seen.
  words.push_back("MILLRACE_CONFIG=" + shell_word(inputs.files.empty() ? "/dev/null" : inputs.files.front().string()));
  const bool is_phase2 = goes_on_from_a_run(config);
  if (is_phase2) words.emplace_back("PHASE1_DIR=RUN1");
  words.emplace_back("sbatch");
  add_nodes(words, cluster, is_phase2);
  for (std::size_t i = 1; i < inputs.files.size(); ++i)
    words.insert(words.end(), {"--config", shell_word(inputs.files[i].string())});
  add_unset_settings(words, config);
  if (forecast.chosen_trainer) words.push_back("roles.trainer_gpu=" + name_of(*forecast.chosen_trainer, cluster));
  for (const auto& override : inputs.overrides)
    if (!override.starts_with("plan.")) words.push_back(shell_word(override));
  return words;
}

}  // namespace millrace
