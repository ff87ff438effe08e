#pragma once
#include <filesystem>
#include <string_view>
#include <vector>

namespace millrace {

// A control group that limits this process, by the files in `folder`, of version 1 or 2.
struct ControlGroup {
  std::filesystem::path folder;
  int version;
};

// The process's own groups for `controller` ("memory", "cpu") and all above them, which limit it as well. Some of the
// folders may not be there. `root` stands in for / in tests.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::filesystem::path& root = "/");

}  // namespace millrace
