#pragma once
#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "command.h"
#include "millrace/comm/agree.h"
#include "millrace/comm/world.h"
#include "millrace/config/config.h"
#include "millrace/core/units.h"
#include "millrace/dataset/data_config.h"
#include "millrace/dataset/manifest.h"
#include "millrace/loader/data_plan.h"
#include "millrace/models/pipeline_folder.h"

// What every rank of a launched command sets up first, and how all of them end.
namespace millrace {

// Joins the other ranks and runs a command with them. What goes wrong is printed once and becomes the exit code of all:
// an error that all agree on by rank 0, after which they end in order; any other by the rank that has it, which ends
// the rest, since they wait for it.
int run_ranks(const std::function<int(World&)>& command);

// Settings that say how a rank uses its own node, and may differ from rank to rank.
bool is_of_the_node(const std::string& key);

// Error(usage) on a rank that has others than rank 0. `changes`: from rank 0's settings to its own.
void refuse_other_settings(const World& world, const std::vector<config::Change>& changes);

// The same of settings that every rank has read for itself. Collective.
template <class Root>
void check_same_settings(const World& world, const Root& own) {
  const auto of_root = world.group().broadcast(config::dump_yaml(own));
  on_all(world.group(), [&] { refuse_other_settings(world, config::diff(of_root, own)); });
}

// The configuration on every rank, which is the same on all; a mistake is an AgreedError. Printed, when that is asked
// for, by rank 0.
template <class Root, class Check>
Loaded<Root> load_config(const World& world, const CommandLine& line, Check&& check) {
  auto loaded = on_all(world.group(), [&] { return load_config<Root>(line, check, /*prints=*/world.rank() == 0); });
  check_same_settings(world, loaded.root);
  return loaded;
}

struct Session {
  World& world;
  torch::Device device;
  int threads;  // of this rank

  bool is_root() const { return world.rank() == 0; }
};

// Threads (auto: the node's CPUs shared out to its ranks), device, time limit of waits. Collective.
Session start_session(World& world, const std::string& device, const config::Auto<Duration>& hang_timeout,
                      const config::Auto<int>& threads);

// How this process computes: run.deterministic and model.fused_kernels.
void choose_kernels(torch::Device device, bool deterministic, const config::Auto<bool>& fused);

double hang_seconds(const config::Auto<Duration>& hang_timeout);

// From now on this rank also writes RUN/log/rank-00003.log. `role` = trainer, producer or empty.
void open_log(const Session& session, const std::filesystem::path& run_dir, const std::string& role, bool console);

// True on all ranks when a signal told any of them to stop. Collective.
bool told_to_stop(const Group& group);

// What a command ends with that was told to stop before it wrote anything.
int stopped_before_start(const Session& session);

// On every rank; Error(io) when it is missing.
PipelineFolder open_pipeline(const Group& world, const std::string& path);

// Made by rank 0, the same everywhere; its errors reach all ranks.
DataPlan broadcast_data_plan(const Group& world, const SourceConfig& source, const DataConfig& data, int global_batch);
// The same where every rank reads its own share of one pass.
DataPlan broadcast_shares(const Group& world, const SourceConfig& source, const DataConfig& data);

// GPU name of every rank; "" where there is none. Collective.
std::vector<std::string> gpu_names(const Session& session);

std::vector<RankOnHost> on_hosts(const Session& session, const std::vector<int>& ranks);

}  // namespace millrace
