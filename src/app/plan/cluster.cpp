#include "plan/cluster.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "millrace/core/error.h"
#include "millrace/core/text.h"

namespace millrace {
namespace {

constexpr std::array gpus = {
    GpuModel{"a100-80g", "a100", "NVIDIA A100-SXM4-80GB", 80, {97.5, 120, true}, {110, 110, false}},
    GpuModel{"a100-40g", "a100", "NVIDIA A100-SXM4-40GB", 40, {97.5, 120, true}, {110, 110, false}},
    GpuModel{"h100", "h100", "NVIDIA H100 80GB HBM3", 80, {285, 330, true}, {350, 350, false}},
    GpuModel{"h200", "h200", "NVIDIA H200", 140, {310, 361, true}, {350, 350, false}},
    GpuModel{"b200", "b200", "NVIDIA B200", 180, {570, 664, true}, {700, 700, false}},
    GpuModel{"l40s", "l40s", "NVIDIA L40S", 45, {64, 74, true}, {110, 110, false}},
    GpuModel{"a10g", "a10g", "NVIDIA A10G", 22.5, {15, 17, false}, {23.8, 29, true}},
    GpuModel{"a10", "a10", "NVIDIA A10", 22.5, {25, 30, false}, {44, 44, false}},
    GpuModel{"l4", "l4", "NVIDIA L4", 22.5, {20, 24, false}, {42, 42, false}},
    GpuModel{"a40", "a40", "NVIDIA A40", 45, {30, 36, false}, {52, 52, false}},
    GpuModel{"a6000", "a6000", "NVIDIA RTX A6000", 48, {31, 37, false}, {54, 54, false}},
    GpuModel{"rtx3090", "3090", "NVIDIA GeForce RTX 3090", 23.6, {14, 17, false}, {25, 25, false}},
    GpuModel{"rtx4090", "4090", "NVIDIA GeForce RTX 4090", 23.6, {33, 40, false}, {58, 58, false}},
    GpuModel{"cpu", "", "", 0, {0, 0, false}, {0, 0, false}},
};

constexpr int most_gpus = 1'000'000;  // of a cluster

constexpr std::string_view grammar = "COUNTxGPUSxMODEL, joined by \" + \", as in \"4x8xa100-80g + 48x1xa10g\"";

int read_count(std::string_view text, std::string_view group) {
  const auto count = parse_number<int>(text);
  if (!count || *count < 1 || *count > most_gpus)
    throw Error(Exit::usage, fmt::format("--nodes: \"{}\": \"{}\" is no number of nodes or GPUs", group, text),
                fmt::format("a cluster is {}", grammar));
  return *count;
}

std::string known_names() {
  std::vector<std::string_view> names;
  for (const auto& gpu : gpus) names.push_back(gpu.name);
  return fmt::format("known are {}", fmt::join(names, ", "));
}

const GpuModel& find_gpu(std::string_view text, std::string_view group) {
  const auto name = lower(std::string(text));
  const auto found = std::ranges::find(gpus, name, &GpuModel::name);
  if (found == gpus.end())
    throw Error(Exit::usage, fmt::format("--nodes: \"{}\": no GPU model \"{}\" is known", group, text), known_names());
  return *found;
}

NodeGroup parse_group(std::string_view group) {
  const auto first = group.find('x');
  const auto second = first == std::string_view::npos ? first : group.find('x', first + 1);
  if (second == std::string_view::npos)
    throw Error(Exit::usage, fmt::format("--nodes: \"{}\" does not say how many nodes of how many GPUs", group),
                fmt::format("a cluster is {}", grammar));
  return {read_count(group.substr(0, first), group), read_count(group.substr(first + 1, second - first - 1), group),
          &find_gpu(group.substr(second + 1), group)};
}

void check_size(std::span<const NodeGroup> cluster) {
  std::int64_t sum = 0;
  for (const auto& group : cluster) sum += std::int64_t{group.nodes} * group.gpus_per_node;
  if (sum > most_gpus)
    throw Error(Exit::usage, fmt::format("--nodes: {} GPUs are more than the {} that are planned for", sum, most_gpus),
                fmt::format("a cluster is {}", grammar));
}

}  // namespace

std::span<const GpuModel> known_gpus() {
  return gpus;
}

std::vector<NodeGroup> parse_cluster(std::string_view spec) {
  std::vector<NodeGroup> cluster;
  for (std::string_view rest = spec;;) {
    const auto plus = rest.find('+');
    cluster.push_back(parse_group(trim(rest.substr(0, plus))));
    if (plus == std::string_view::npos) break;
    rest.remove_prefix(plus + 1);
  }
  check_size(cluster);
  return cluster;
}

std::string to_string(std::span<const NodeGroup> cluster) {
  std::string text;
  for (const auto& group : cluster)
    text += fmt::format("{}{}x{}x{}", text.empty() ? "" : " + ", group.nodes, group.gpus_per_node, group.gpu->name);
  return text;
}

}  // namespace millrace
