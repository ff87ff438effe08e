#pragma once
#include <torch/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "load_config.h"
#include "millrace/comm/agree.h"
#include "millrace/comm/world.h"
#include "millrace/config/config.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/train/train_config.h"

// What every rank of a launched command sets up first.
namespace millrace {

// Whether a setting says how a rank uses its own node, and may differ from rank to rank.
bool is_of_the_node(const std::string& key);

// What must not differ between the settings of two ranks, and does; the other rank's as `dump_yaml` has them.
template <class Root>
std::vector<config::Change> differing_settings(const std::string& of_other, const Root& own) {
  auto changes = config::diff(of_other, own);
  std::erase_if(changes, [](const config::Change& change) { return is_of_the_node(change.key); });
  return changes;
}

// Error(usage) where there are such differences from rank 0's settings.
void refuse_other_settings(const World& world, const std::vector<config::Change>& differing);

// The configuration on every rank, which is the same on all; a mistake is an AgreedError. Printed, when that is asked
// for, by rank 0.
template <class Root, class Check>
Loaded<Root> load_config(const World& world, const CommandLine& line, Check&& check, const Root& defaults = {}) {
  auto loaded =
      on_all(world.group(), [&] { return load_config<Root>(line, check, /*prints=*/world.is_root(), defaults); });
  const auto of_root = world.group().broadcast(config::dump_yaml(loaded.root));
  on_all(world.group(), [&] { refuse_other_settings(world, differing_settings(of_root, loaded.root)); });
  return loaded;
}

struct Session {
  World& world;
  torch::Device device;
  int threads;  // of this rank

  bool is_root() const { return world.is_root(); }
};

// Threads (auto: the node's CPUs shared out to its ranks), device, time limit of waits. Collective.
Session start_session(World& world, const std::string& device, const GuardConfig& guard,
                      const config::Auto<int>& threads);

// How this process computes: run.deterministic and model.fused_kernels.
void choose_kernels(torch::Device device, bool deterministic, const config::Auto<bool>& fused);

// From now on this rank also writes RUN/log/rank-00003.log, which says where it runs and its `work`, for who
// opens the file of one rank of many. `role` = trainer, producer or empty.
void open_log(const Session& session, const std::filesystem::path& run_dir, const std::string& role, bool console,
              const std::string& work);

// True on all ranks when a signal told any of them to stop. Collective.
bool told_to_stop(const Group& group);

// What a command ends with that was told to stop before it wrote anything.
int stopped_before_start(const Session& session);

// On every rank; Error(io) when it is missing.
PipelineFolder open_pipeline(const Group& world, const std::string& path);

// GPU name of every rank; "" where there is none. Collective.
std::vector<std::string> gpu_names(const Session& session);

std::vector<RankOnHost> on_hosts(const Session& session, const std::vector<int>& ranks);

}  // namespace millrace
