#pragma once
#include <string>
#include <vector>

#include "app_config.h"
#include "plan/run_forecast.h"

namespace millrace {

// Placeholders in a plan for what only a run needs.
inline constexpr const char* unset_run_dir = "RUN";
inline constexpr const char* unset_pipeline = "Stable Diffusion 2";
inline constexpr const char* unset_archives = "ARCHIVES";

// The command line that submits the planned run to Slurm, word by word as a shell reads it: nodes and GPUs of
// `cluster`, the files and overrides that the plan was made with, and its roles.
std::vector<std::string> start_command(const RunForecast& forecast, const std::vector<NodeGroup>& cluster,
                                       const TrainConfig& config, const config::Inputs& inputs);

}  // namespace millrace
