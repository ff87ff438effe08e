#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

// A cluster in words.
namespace millrace {

// Speed in 10^12 operations a second, by the resolution of the images.
struct Rates {
  double at_256, at_512;
  bool is_published;  // reached by others with Stable Diffusion 2 in 16 bits; else a fraction of the peak rate

  double at(int resolution) const { return resolution <= 384 ? at_256 : at_512; }
};

// A kind of GPU, or "cpu" for ranks without one. docs/planning.md has the sources of its rates.
struct GpuModel {
  std::string_view name;    // as in a description of a cluster
  std::string_view word;    // in `driver`, tells it from most others; taken to be Slurm's feature as well
  std::string_view driver;  // the driver's name of it, which roles.* are compared with
  double memory_gib;        // 0: no limit is known
  Rates train, encode;

  bool is_cpu() const { return name == "cpu"; }
};

std::span<const GpuModel> known_gpus();

struct NodeGroup {
  int nodes, gpus_per_node;
  const GpuModel* gpu;

  int gpus() const { return nodes * gpus_per_node; }
};

// "4x8xa100-80g + 48x1xa10g": groups of COUNTxGPUSxMODEL. Error(usage) explains the form or lists the models.
std::vector<NodeGroup> parse_cluster(std::string_view spec);

// The reverse of parse_cluster.
std::string to_string(std::span<const NodeGroup> cluster);

}  // namespace millrace
