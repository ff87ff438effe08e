#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

// A cluster in words.
namespace millrace {

// A kind of GPU, or "cpu" for ranks without one. Rates are what others have reached on it with Stable Diffusion 2 in 16
// bits; docs/planning.md has their sources.
struct GpuModel {
  std::string_view name;  // as a cluster's description calls it
  std::string_view part;  // of the name that the driver gives it, for roles.trainer_gpu
  double memory_gib;      // 0: no limit is known
  // 10^12 operations a second: of training at 256 and at 512 pixels, of encoding.
  double train_256, train_512, encode;
  bool is_published;  // else taken from the GPU's peak rate

  bool is_cpu() const { return name == "cpu"; }
};

std::span<const GpuModel> known_gpus();

struct NodeGroup {
  int nodes, gpus_per_node;
  const GpuModel* gpu;

  int gpus() const { return nodes * gpus_per_node; }
};

// "4x8xa100-80g + 48x1xa10g": groups of COUNTxGPUSxMODEL. Error(usage) that says what is known.
std::vector<NodeGroup> parse_cluster(std::string_view spec);

// "4x8xa100-80g + 48x1xa10g" again.
std::string to_string(std::span<const NodeGroup> cluster);

}  // namespace millrace
