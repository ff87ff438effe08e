#pragma once
#include <string>
#include <string_view>
#include <vector>

// Dotted keys: "data.train.path", "optim.betas[0]".
namespace millrace::config {

using Path = std::vector<std::string>;

Path split(std::string_view dotted);
// Numbers come out as indices: "optim.betas[0]".
std::string join(const Path& path);
std::string join(std::string_view section, std::string_view name);

}  // namespace millrace::config
