#include "control_group.h"

#include <fstream>
#include <string>

namespace millrace {

// Lines "HIERARCHY:CONTROLLERS:/PATH" ("4:cpu,cpuacct:/job_7"); version 2 has hierarchy 0 and names no controllers.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::filesystem::path& root) {
  std::vector<ControlGroup> groups;
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const auto names = line.find(':'), path = line.find(":/");
    if (path == line.npos) continue;
    const bool is_2 = line.starts_with("0::");
    const auto controllers = "," + line.substr(names + 1, path - names - 1) + ",";
    if (!is_2 && controllers.find("," + std::string(controller) + ",") == controllers.npos) continue;
    const auto mount = is_2 ? root / "sys/fs/cgroup" : root / "sys/fs/cgroup" / controller;
    for (std::filesystem::path group = line.substr(path + 2);; group = group.parent_path()) {
      groups.push_back({mount / group, is_2 ? 2 : 1});
      if (group.empty()) break;
    }
  }
  return groups;
}

}  // namespace millrace
