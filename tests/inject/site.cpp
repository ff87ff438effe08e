#include "site.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

namespace millrace::inject {
namespace {

const std::set<Call> changing = {Call::create, Call::write,  Call::fsync, Call::close,
                                 Call::rename, Call::unlink, Call::mkdir, Call::truncate};

Call call_of(const std::string& name) {
  return *std::ranges::find_if(changing, [&](Call call) { return name == name_of(call); });
}

bool is_changing(const std::string& name) {
  return std::ranges::any_of(changing, [&](Call call) { return name == name_of(call); });
}

}  // namespace

Spec Site::fault(Kind kind, const std::string& run, bool onwards) const {
  const std::string file = path.empty() ? run : fmt::format("{}/{}", run, path);
  return parse_spec(
      fmt::format("{}@{}:*:{}={}:{}{}", name_of(kind), rank, name_of(call), file, number, onwards ? "+" : ""));
}

std::vector<Site> read_sites(const fs::path& count_folder, int ranks, const fs::path& run) {
  std::vector<Site> sites;
  for (int rank = 0; rank < ranks; ++rank) {
    std::map<std::pair<Call, std::string>, std::vector<Site>> groups;
    std::set<std::string> written;  // what is only read is closed, too
    std::ifstream in(count_folder / fmt::format("rank-{}.tsv", rank));
    for (std::string line; std::getline(in, line);) {
      std::istringstream fields(line);
      std::string step, phase, call, path;
      std::getline(fields, step, '\t');
      std::getline(fields, phase, '\t');
      std::getline(fields, call, '\t');
      std::getline(fields, path);
      if (!is_changing(call) || !(path == run || path.starts_with(run.string() + "/"))) continue;
      path.erase(0, std::min(path.size(), run.string().size() + 1));
      if (call_of(call) == Call::create) written.insert(path);
      if (call_of(call) == Call::close && !written.contains(path)) continue;
      auto& group = groups[{call_of(call), path}];
      group.push_back({rank, call_of(call), path, static_cast<int>(group.size()) + 1, phase, std::atoi(step.c_str())});
    }
    for (const auto& [key, group] : groups) {
      const bool thin = key.first == Call::write && group.size() > 3;
      for (std::size_t i = 0; i < group.size(); ++i)
        if (!thin || i == 0 || i == group.size() / 2 || i + 1 == group.size()) sites.push_back(group[i]);
    }
  }
  return sites;
}

}  // namespace millrace::inject
