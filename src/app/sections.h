#pragma once
#include <optional>
#include <string>

#include "millrace/config/config.h"

namespace millrace {

struct GuardConfig;

// One configuration file serves all commands: what `root` does not describe of the sections that the program has is
// left alone. Called last in `describe`.
void ignore_other_sections(config::Section& root);

// Key `threads` of commands that compute.
void describe_threads(config::Section& root, config::Auto<int>& threads);

// Section `guard` of commands that train nothing, but wait for other ranks.
void describe_hang_guard(config::Section& root, GuardConfig& guard);

// Section `run` of commands without a run folder: where they run.
struct DeviceConfig {
  std::string device = "auto";

  void describe(config::Section& section);
};

// Of section `model`, what trainings have and this command does not describe is left alone.
void ignore_models_of_trainings(config::Section& model);

// Section `model` of commands that take weights as they are: arithmetic.
struct PrecisionConfig {
  std::string dtype = "auto";

  void describe(config::Section& section);
};

// Key `model.pipeline` of commands that read a run, for a folder that has been moved since.
void describe_moved_pipeline(config::Section& model, std::optional<std::string>& pipeline);
// As it was typed: in a file it is the folder of whatever run the file is for.
std::optional<std::string> typed_pipeline(const config::Report& report, const std::optional<std::string>& pipeline);

}  // namespace millrace
