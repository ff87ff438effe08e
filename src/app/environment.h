#pragma once
#include <string>
#include <utility>
#include <vector>

namespace millrace {

// What this process is and runs on, by name: "millrace", "build", "processor", "CUDA" and so on.
std::vector<std::pair<std::string, std::string>> describe_environment();

}  // namespace millrace
