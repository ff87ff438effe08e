#pragma once
#include <cstdint>
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

// What the run would do, the same on every rank; each check adds its part.
struct Plan {
  Session session;
  Roles roles = {};
  PipelineFolder pipeline = {};
  nlohmann::json unet = {};  // its config.json
  DataPlan data = {};
  EncodingPlan encoding = {};
  Group of_role = {};  // the ranks with this rank's role

  bool trains(int rank) const { return roles.trains(rank); }
  bool produces(int rank) const { return roles.all_in_one || !trains(rank); }
  std::vector<std::string> role_of_ranks() const;
};

// checks_host.cpp
// The program, its libraries and its configuration are the same everywhere; returns the configuration.
Loaded<TrainConfig> check_program(Checkup& checkup, const CommandLine& line);
// Threads, memory and GPUs; who does what.
Plan check_machines(Checkup& checkup, World& world, const TrainConfig& config);

// checks_files.cpp
void check_model_folder(Checkup& checkup, const TrainConfig& config, Plan& plan);
void check_plan(Checkup& checkup, const TrainConfig& config, Plan& plan);
void check_run_folder(Checkup& checkup, const std::filesystem::path& run_dir, ScratchFolder& scratch);
void check_data(Checkup& checkup, const TrainConfig& config, const Plan& plan);
// `bytes`: of one checkpoint.
void check_space(Checkup& checkup, const TrainConfig& config, std::uint64_t bytes);

// checks_network.cpp
void check_clocks(Checkup& checkup);
void check_messages(Checkup& checkup, const Plan& plan);

// checks_step.cpp
// The same step of all trainers; returns the bytes of a checkpoint.
std::uint64_t check_step(Checkup& checkup, const TrainConfig& config, const Plan& plan);

}  // namespace millrace::preflight
