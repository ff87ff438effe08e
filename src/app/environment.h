#pragma once
#include <string>
#include <utility>
#include <vector>

namespace millrace {

// The rest of the first line of a file that starts with `prefix`, without quotes; "unknown" where there is none.
std::string first_line(const char* path, const std::string& prefix);

// What this process is and runs on, by name: "millrace", "build", "processor", "CUDA" and so on.
std::vector<std::pair<std::string, std::string>> describe_environment();

}  // namespace millrace
