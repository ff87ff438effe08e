#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "millrace/config/config.h"

namespace millrace {

// One `--name VALUE...` of a command, beside those that every command has.
struct OptionSpec {
  enum class Takes { nothing, one, many };
  std::string name;   // without dashes
  std::string value;  // how --help calls it
  std::string help;
  Takes takes = Takes::one;
};

// millrace COMMAND [--config FILE]... [--option VALUE]... [key=value]...
struct CommandLine {
  std::string command;
  config::Inputs inputs;                                    // files and overrides, in order
  std::map<std::string, std::vector<std::string>> options;  // as given; flags have an empty list
  std::vector<std::string> paths;                           // what is neither option nor override
  std::optional<std::string> print_config;                  // yaml | json
  bool dry_run = false;
  bool version = false;
  std::optional<std::string> help;  // a section, or empty for all

  bool has(const std::string& name) const { return options.contains(name); }
  std::optional<std::string> find(const std::string& name) const;
  // Error(usage) that names the option when it was not given.
  std::string get(const std::string& name) const;
};

// Error(usage) for unknown options, and for paths where the command takes none.
CommandLine parse_command_line(const std::vector<std::string>& arguments, const std::vector<OptionSpec>& options,
                               bool takes_paths);

// "section.key=value" or "key=value", also with Hydra's signs, of which config::load knows what to do: "+key=value" and
// "~key".
bool is_override(const std::string& argument);

}  // namespace millrace
