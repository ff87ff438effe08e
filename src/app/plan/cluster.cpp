#include "plan/cluster.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "millrace/core/error.h"
#include "millrace/core/text.h"

namespace millrace {
namespace {

constexpr std::array gpus = {
    GpuModel{"a100-80g", "a100", 80, 75, 87, 110, true}, GpuModel{"a100-40g", "a100", 40, 75, 87, 110, true},
    GpuModel{"h100", "h100", 80, 285, 330, 350, true},   GpuModel{"h200", "h200", 140, 310, 361, 350, true},
    GpuModel{"b200", "b200", 180, 570, 664, 700, true},  GpuModel{"l40s", "l40s", 45, 64, 74, 110, true},
    GpuModel{"a10g", "a10g", 22.5, 15, 17, 35, false},   GpuModel{"a10", "a10", 22.5, 25, 30, 44, false},
    GpuModel{"l4", "l4", 22.5, 20, 24, 42, false},       GpuModel{"a40", "a40", 45, 30, 36, 52, false},
    GpuModel{"a6000", "a6000", 48, 31, 37, 54, false},   GpuModel{"rtx3090", "3090", 24, 14, 17, 25, false},
    GpuModel{"rtx4090", "4090", 24, 33, 40, 58, false},  GpuModel{"cpu", "", 0, 0, 0, 0, false},
};

constexpr std::string_view grammar = "COUNTxGPUSxMODEL, joined by \" + \", as in \"4x8xa100-80g + 48x1xa10g\"";

int read_count(std::string_view text, std::string_view group) {
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1 || count > 1'000'000)
    throw Error(Exit::usage, fmt::format("--nodes: \"{}\": \"{}\" is no number of nodes or GPUs", group, text),
                fmt::format("a cluster is {}", grammar));
  return count;
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

}  // namespace

std::span<const GpuModel> known_gpus() {
  return gpus;
}

std::vector<NodeGroup> parse_cluster(std::string_view spec) {
  std::vector<NodeGroup> cluster;
  for (std::string_view rest = spec;;) {
    const auto plus = rest.find('+');
    cluster.push_back(parse_group(trim(rest.substr(0, plus))));
    if (plus == std::string_view::npos) return cluster;
    rest.remove_prefix(plus + 1);
  }
}

std::string to_string(std::span<const NodeGroup> cluster) {
  std::string text;
  for (const auto& group : cluster)
    text += fmt::format("{}{}x{}x{}", text.empty() ? "" : " + ", group.nodes, group.gpus_per_node, group.gpu->name);
  return text;
}

}  // namespace millrace
