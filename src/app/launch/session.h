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

// Whether a key only says how a rank uses its own node, so that it may differ between ranks.
bool is_of_the_node(const std::string& key);

// Settings that differ between two ranks and must not. `of_other`: the other rank's, as dump_yaml prints them.
template <class Root>
std::vector<config::Change> differing_settings(const std::string& of_other, const Root& own) {
  auto changes = config::diff(of_other, own);
  std::erase_if(changes, [](const config::Change& change) { return is_of_the_node(change.key); });
  return changes;
}

// Error(usage) if there are such differences from rank 0's settings.
void refuse_other_settings(const World& world, const std::vector<config::Change>& differing);

// Loads the configuration on every rank, and makes sure that all have the same; a mistake is an AgreedError. Rank 0
// prints it if that is asked for.
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

// Sets up threads (auto: the node's CPUs shared out to its ranks), the device, and the time limit of waits. Collective.
Session start_session(World& world, const std::string& device, const GuardConfig& guard,
                      const config::Auto<int>& threads);

// Chooses how this process computes: run.deterministic and model.fused_kernels.
void choose_kernels(torch::Device device, bool deterministic, const config::Auto<bool>& fused);

// From now on this rank also writes RUN/log/rank-00003.log, which says where it runs and what its `work` is, for those
// who open the file of one rank of many. `role` = trainer, producer or empty.
void open_log(const Session& session, const std::filesystem::path& run_dir, const std::string& role, bool console,
              const std::string& work);

// True on all ranks when a signal told any of them to stop. Collective.
bool told_to_stop(const Group& group);

// The exit code of a command that was told to stop before it wrote anything; rank 0 says so.
int stopped_before_start(const Session& session);

// Opens the folder on every rank; Error(io) on all when something of it is missing. Collective.
PipelineFolder open_pipeline(const Group& world, const std::string& path);

// GPU name of every rank; "" where there is none. Collective.
std::vector<std::string> gpu_names(const Session& session);

std::vector<RankOnHost> on_hosts(const Session& session, const std::vector<int>& ranks);

}  // namespace millrace
