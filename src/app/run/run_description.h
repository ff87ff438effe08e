#pragma once
#include <string>

#include "launch/session.h"
#include "millrace/config/config.h"

// What a run writes down about itself when it starts, besides its configuration.
namespace millrace {

struct RunDescription {
  std::string config;       // config.yaml, without secrets
  std::string environment;  // environment.json
  std::string base;         // template.yaml; empty where no --config was given
};

// environment.json: what `env` tells of rank 0, the micro-batch, and host, role, device and threads of every rank. On
// rank 0; collective.
std::string environment_of(const Session& session, const std::string& role, int micro_batch);

// template.yaml: what the files of --config say without what else was given, below a line with the name of each.
template <class Config>
std::string template_of(const config::Inputs& inputs) {
  if (inputs.files.empty()) return "";
  std::string text;
  for (const auto& file : inputs.files) text += "# " + file.string() + "\n";
  Config config;
  config::load(config, {inputs.files, {}});  // what they lack, as run.dir, stays ???
  return text + config::dump_yaml_for_others(config);
}

// `role`: of this rank. Collective.
template <class Config>
RunDescription description_of(const Session& session, const Config& config, const config::Inputs& inputs,
                              const std::string& role, int micro_batch) {
  return {config::dump_yaml_for_others(config), environment_of(session, role, micro_batch),
          template_of<Config>(inputs)};
}

}  // namespace millrace
