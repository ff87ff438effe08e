#include "archive_names.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/text.h"
#include "millrace/core/visible.h"
#include "millrace/io/archive_name.h"
#include "millrace/io/net/urls.h"

namespace millrace {

namespace {

// Nothing when it is no archive's.
std::optional<std::string> without_suffix(std::string_view path) {
  const auto name = try_archive_name(path);
  return name ? std::optional(std::string(name->stem)) : std::nullopt;
}

std::string_view without_query(std::string_view url) {
  return url.substr(0, url.find_first_of("?#"));
}

// The last word of a shell command that looks like an archive, without its suffix.
std::optional<std::string> archive_word(std::string_view command) {
  constexpr std::string_view separators = " \t'\"|<>;&()=";
  std::optional<std::string> found;
  while (!command.empty()) {
    const std::size_t end = std::min(command.find_first_of(separators), command.size());
    if (auto name = without_suffix(without_query(command.substr(0, end)))) found = std::move(name);
    command.remove_prefix(std::min(end + 1, command.size()));
  }
  return found;
}

// The whole path without suffix and scheme, from which the name takes as much as it needs.
std::string naming_path(const std::string& path, std::size_t number) {
  if (path == "-" || is_pipe(path))
    return archive_word(path.substr(path.find(':') + 1)).value_or(fmt::format("pipe-{}", number));
  const std::string file = local_path(path);
  // What stands behind ? or # of an S3 key is part of it.
  std::string location = !file.empty() ? file : std::string(is_http(path) ? without_query(path) : path);
  if (location.find("..") == location.npos && !file.empty())  // `..` behind a link leads elsewhere
    location = fs::path(file).lexically_normal().string();
  std::string name = without_suffix(location).value_or(location);
  const std::size_t scheme = name.find("://");
  const std::size_t start = name.find_first_not_of('/', scheme == name.npos ? 0 : scheme + 3);
  if (start == name.npos) return name;
  const std::size_t host = scheme == name.npos ? name.npos : name.substr(0, name.find('/', start)).rfind('@');
  return name.substr(host == name.npos || host < start ? start : host + 1);  // without user and password
}

// The last `components` components of a path.
std::string_view tail(std::string_view path, std::size_t components) {
  std::size_t start = path.size();
  while (components-- > 0 && start != path.npos && start > 0) start = path.rfind('/', start - 1);
  return start == path.npos ? path : path.substr(start + 1);
}

std::size_t components(std::string_view path) {
  return std::count(path.begin(), path.end(), '/') + 1;
}

// How many components tell the paths of one file name apart.
std::size_t distinguishing_components(const std::vector<std::string_view>& paths) {
  std::size_t longest = 1;
  for (std::string_view path : paths) longest = std::max(longest, components(path));
  for (std::size_t count = 1; count <= longest; ++count) {
    std::set<std::string_view> tails;
    for (std::string_view path : paths) tails.insert(tail(path, count));
    if (tails.size() == paths.size()) return count;
  }
  throw bug("archive_names: paths of one name");
}

void refuse_equal_names(const std::vector<std::string>& paths, const std::vector<std::string>& full,
                        const std::string& section) {
  std::map<std::string_view, const std::string*> path_of;
  for (std::size_t i = 0; i < full.size(); ++i) {
    const auto [other, is_new] = path_of.try_emplace(full[i], &paths[i]);
    if (is_new) continue;
    if (*other->second == paths[i])
      throw Error(Exit::usage, fmt::format("{}.path holds {} more than once", section, visible_line(paths[i])),
                  "ids of samples must be unique; list every archive once");
    throw Error(Exit::usage,
                fmt::format("{}.path holds two archives of one name, {}: {} and {}", section, full[i],
                            visible_line(*other->second), visible_line(paths[i])),
                "ids of samples begin with it, without suffix and query, and must be unique: rename one");
  }
}

}  // namespace

std::vector<std::string> archive_names(const std::vector<std::string>& paths, const std::string& section) {
  std::vector<std::string> full;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    full.push_back(naming_path(paths[i], i));
    // Names stand in checkpoints, ids and records, which are JSON.
    if (valid_utf8(full.back()) != full.back())
      throw Error(Exit::usage, fmt::format("{}.path: the name of {} is not UTF-8", section, visible_line(paths[i])),
                  "rename it");
  }
  refuse_equal_names(paths, full, section);
  std::map<std::string_view, std::vector<std::string_view>> same_name;
  for (const std::string& path : full) same_name[tail(path, 1)].push_back(path);
  std::map<std::string_view, std::size_t> count;
  for (const auto& [name, group] : same_name) count[name] = distinguishing_components(group);
  std::vector<std::string> names;
  for (const std::string& path : full) names.emplace_back(tail(path, count[tail(path, 1)]));
  return names;
}

}  // namespace millrace
