#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "app_config.h"
#include "command.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/produce/encode_pipeline.h"
#include "preflight/checkup.h"
#include "preflight/scratch_folder.h"
#include "run/roles.h"
#include "run/session.h"

// The checks of `millrace preflight`, each a line or two of its table. All are collective over the world.
namespace millrace::preflight {

// What the run would do, the same on every rank.
struct Plan {
  PipelineFolder pipeline;
  DataPlan data = {};
  EncodingPlan encoding = {};
  Roles roles = {};
  Routing routing = {};
  std::size_t parcel_bytes = 0;
  Group of_role = {};  // the ranks with this rank's role

  bool trains(int rank) const { return roles.trains(rank); }
  bool produces(int rank) const { return roles.all_in_one || !trains(rank); }
};

// checks_host.cpp
// The program, its libraries and its configuration are the same everywhere; returns the configuration.
Loaded<TrainConfig> check_program(Checkup& checkup, const CommandLine& line);
void check_clocks(Checkup& checkup);
// Threads, memory and GPUs; who does what.
struct Machines {
  Session session;
  Roles roles;
};
Machines check_machines(Checkup& checkup, World& world, const TrainConfig& config);

// checks_files.cpp
PipelineFolder check_model_folder(Checkup& checkup, const TrainConfig& config);
Plan check_plan(Checkup& checkup, const Machines& machines, const TrainConfig& config, PipelineFolder pipeline);
void check_run_folder(Checkup& checkup, ScratchFolder& scratch);
void check_data(Checkup& checkup, const TrainConfig& config, const Plan& plan);
// `checkpoint_bytes`: of one checkpoint.
void check_space(Checkup& checkup, const TrainConfig& config, std::uint64_t checkpoint_bytes);

// checks_network.cpp
void check_network(Checkup& checkup, const TrainConfig& config, const Plan& plan);

// checks_step.cpp
// The same step of all trainers twice; returns the bytes of a checkpoint.
std::uint64_t check_step(Checkup& checkup, const Session& session, const TrainConfig& config, const Plan& plan);

}  // namespace millrace::preflight
