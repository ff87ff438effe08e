#pragma once
#include <torch/torch.h>

#include <memory>
#include <string>

#include "millrace/comm/world.h"
#include "millrace/core/config.h"
#include "millrace/core/units.h"
#include "millrace/data/config.h"
#include "millrace/data/manifest.h"

// What every rank of a training command sets up first.
namespace millrace {

struct Session {
  World& world;
  torch::Device device;
  int threads;  // of this rank

  bool is_root() const { return world.rank() == 0; }
};

// Signals, threads (the node's cores shared out to its ranks), device, time limit of waits.
Session start_session(World& world, const std::string& device, const config::Auto<Duration>& hang_timeout);

double hang_seconds(const config::Auto<Duration>& hang_timeout);

// Made by rank 0, the same everywhere; its errors reach all ranks.
DataPlan share_data_plan(const Group& world, const SourceConfig& source, const DataConfig& data, int global_batch);

// GPU name of every rank; "" where there is none.
std::vector<std::string> gpu_names(const Session& session);

// Runs a role. An exception becomes one log line and ends all ranks with its exit code, since the others wait for this
// one. Alone, or when every rank fails with the same agreed error before anything started, it is simply passed on.
template <class Body>
int run_role(const Session& session, Body&& body);

[[noreturn]] void abort_run(const World& world, const std::exception& error);

template <class Body>
int run_role(const Session& session, Body&& body) {
  if (session.world.size() == 1) return body();
  try {
    return body();
  } catch (const std::exception& error) {
    abort_run(session.world, error);
  }
}

}  // namespace millrace
