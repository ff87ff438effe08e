#include "millrace/config/flatten.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace millrace::config {

std::map<std::string, std::string> flatten(const std::string& yaml) {
  std::map<std::string, std::string> settings;
  std::vector<std::string> path;
  for (std::size_t begin = 0; begin < yaml.size();) {
    const auto end = std::min(yaml.find('\n', begin), yaml.size());
    const auto line = std::string_view(yaml).substr(begin, end - begin);
    begin = end + 1;
    const auto indent = line.find_first_not_of(' ');
    const auto colon = line.find(':');
    if (indent == line.npos || colon == line.npos || line[indent] == '#') continue;
    path.resize(std::min(path.size(), indent / 2));
    path.emplace_back(line.substr(indent, colon - indent));
    auto value = line.substr(colon + 1);
    value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
    if (value.empty()) continue;
    std::string key;
    for (const auto& word : path) key += (key.empty() ? "" : ".") + word;
    settings[key] = value;
  }
  return settings;
}

}  // namespace millrace::config
