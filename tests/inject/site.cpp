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

Spec Site::fault(Kind kind, const std::string& folder) const {
  const std::string who = rank ? std::to_string(*rank) : "*", file = path.empty() ? folder : folder + "/" + path;
  return parse_spec(fmt::format("{}@{}:*:{}={}:{}{}", name_of(kind), who, name_of(call), file, number,
                                kind == Kind::enospc ? "+" : ""));
}

std::vector<Site> read_sites(const fs::path& count_folder, int ranks, const fs::path& folder) {
  std::vector<Site> sites;
  for (int rank = 0; rank < ranks; ++rank) {
    std::map<std::pair<Call, std::string>, std::vector<Site>> groups;
    std::set<std::string> written;  // what is only read is closed, too
    std::ifstream in(count_folder / fmt::format("rank-{}.tsv", rank));
    for (std::string line; std::getline(in, line);) {
      std::istringstream fields(line);
      std::string step, phase, call, path;
      for (std::string* field : {&step, &phase, &call}) std::getline(fields, *field, '\t');
      std::getline(fields, path);
      if (!is_changing(call) || !(path == folder || path.starts_with(folder.string() + "/"))) continue;
      path.erase(0, std::min(path.size(), folder.string().size() + 1));
      if (call_of(call) == Call::create) written.insert(path);
      if (call_of(call) == Call::close && !written.contains(path)) continue;
      auto& group = groups[{call_of(call), path}];
      group.push_back({rank, call_of(call), path, static_cast<int>(group.size()) + 1});
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
