#pragma once
#include <map>
#include <string>

namespace millrace::config {

// The dotted keys of YAML as `dump_yaml` has it, and config.yaml: a key a line, two spaces a level.
std::map<std::string, std::string> flatten(const std::string& yaml);

}  // namespace millrace::config
