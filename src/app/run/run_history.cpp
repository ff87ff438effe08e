#include "run/run_history.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millrace/checkpoint/line_scan.h"
#include "millrace/config/flatten.h"
#include "millrace/core/append_file.h"
#include "millrace/core/clock.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/json_text.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/core/slurm.h"
#include "millrace/io/json.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;
using Values = std::map<std::string, std::string>;

// Bounds, so that a line stays one that people can read.
constexpr std::size_t most_faults = 10, most_changes = 100, longest_value = 2000;
constexpr auto versions = {"millrace", "build", "program", "LibTorch", "CUDA", "MPI", "system"};

// Null where the file is missing or makes no sense: it may be a killed process's.
nlohmann::json object_or_null(const fs::path& path) {
  try {
    return read_json_object(path);
  } catch (const Error&) {
    return nullptr;
  }
}

std::string written_at(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  if (error) return "";
  return utc_of(std::chrono::system_clock::to_time_t(std::chrono::file_clock::to_sys(time)));
}

// The keys of `json` that are there, in this order; a reason not longer than it has to be.
Json parts_of(const nlohmann::json& json, std::initializer_list<const char*> keys) {
  Json parts;
  for (const char* key : keys) {
    if (!json.contains(key)) continue;
    parts[key] = json.at(key);
    if (parts[key].is_string()) {
      auto& text = parts[key].get_ref<std::string&>();
      text.resize(std::min(text.size(), longest_value));
    }
  }
  return parts;
}

// Those that tell the cause, first: ranks that left with 74 did so, as a rule, because others had.
Json faults_in(const fs::path& run_dir) {
  std::vector<nlohmann::json> faults;
  std::error_code error;
  for (const auto& entry : list_folder(run_dir / run_file::fault, error))
    if (auto fault = object_or_null(entry.path()); !fault.is_null()) faults.push_back(std::move(fault));
  std::ranges::sort(faults, {}, [](const nlohmann::json& fault) {
    const auto number = [&](const char* key) {
      return fault.contains(key) && fault[key].is_number() ? fault[key].get<double>() : 0;
    };
    return std::pair(number("exit") == static_cast<double>(Exit::io), number("time"));
  });
  Json kept = Json::array();
  for (const auto& fault : std::span(faults).first(std::min(faults.size(), most_faults)))
    kept.push_back(parts_of(fault, {"rank", "host", "role", "gpu", "phase", "step", "exit", "reason", "time", "at"}));
  return {{"fault_files", faults.size()}, {"faults", std::move(kept)}};
}

// The newest step that the start before has told of; null where it came to none, and the lines are of an earlier one.
Json reached_in(const fs::path& run_dir) {
  std::error_code error;
  const auto lines = run_dir / run_file::metrics;
  const auto told = fs::last_write_time(lines, error),
             began = fs::last_write_time(run_dir / run_file::environment, error);
  if (!error && told < began) return nullptr;
  const auto line = newest_line(lines);
  return line.contains("step") ? Json(line["step"]) : Json(nullptr);
}

// The last end that starts have told of; null where there is none.
nlohmann::json last_end_told(const fs::path& starts) {
  nlohmann::json told;
  std::ifstream in(starts);
  for (std::string line; std::getline(in, line);) {
    const auto start = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto before = start.is_object() ? start.value("before", nlohmann::json()) : nlohmann::json();
    if (before.contains("time")) told = before;
  }
  return told;
}

// How the start before this one ended; null for a first one. One that has not come as far as to write STATE has left
// that of a start before it, which was told of already.
Json end_before(const fs::path& run_dir) {
  const auto parts = {"state", "step", "exit", "reason", "time"};
  auto state = object_or_null(run_dir / run_file::state);
  if (state.is_null()) return nullptr;
  state["time"] = written_at(run_dir / run_file::state);
  Json end = parts_of(state, parts);
  if (const auto told = last_end_told(run_dir / run_file::starts); end == parts_of(told, parts))
    return {{"state", "did not begin"}};
  end["reached"] = reached_in(run_dir);
  end.update(faults_in(run_dir));
  return end;
}

using Hosts = std::set<std::string>;

// Where a start runs; nothing of it is known of versions that wrote it down otherwise.
struct Surroundings {
  Hosts hosts;
  std::size_t ranks = 0, trainers = 0, producers = 0;  // one that does both is a trainer
  Values versions;
};

Surroundings surroundings_in(const nlohmann::json& environment) {
  Surroundings found;
  if (!environment.is_object()) return found;
  try {
    for (const auto& rank : environment.value("ranks", nlohmann::json::array())) {
      ++found.ranks;
      found.hosts.insert(rank.value("host", ""));
      ++(rank.value("role", "") == "producer" ? found.producers : found.trainers);
    }
    for (const char* key : versions)
      if (environment.contains(key)) found.versions[key] = environment.at(key);
  } catch (const nlohmann::json::exception&) {
    return {};
  }
  return found;
}

std::string shown(const std::string& value) {
  return value.substr(0, longest_value);
}

// Of `all` without `others`.
std::string names_without(const Hosts& all, const Hosts& others) {
  std::vector<std::string> names;
  std::ranges::set_difference(all, others, std::back_inserter(names));
  return shown(fmt::format("{}", fmt::join(names, ", ")));
}

Json changes_around(const Surroundings& before, const Surroundings& now) {
  Json changed = Json::object();
  if (before.ranks == 0 || now.ranks == 0) return changed;
  if (before.hosts != now.hosts)
    changed["hosts"] = {names_without(before.hosts, now.hosts), names_without(now.hosts, before.hosts)};
  if (before.trainers != now.trainers)
    changed["trainers"] = {fmt::to_string(before.trainers), fmt::to_string(now.trainers)};
  if (before.producers != now.producers)
    changed["producers"] = {fmt::to_string(before.producers), fmt::to_string(now.producers)};
  for (const auto& [key, value] : now.versions)
    if (const auto then = before.versions.find(key); then != before.versions.end() && then->second != value)
      changed[key] = {shown(then->second), shown(value)};
  return changed;
}

// Another program may have other keys; of the same one a key that comes or goes is a filter, or of a section that was
// null.
Json changed_settings(const Values& before, const Values& now, bool by_the_same_program) {
  Json changed = Json::object();
  Values keys = now;
  if (by_the_same_program) keys.insert(before.begin(), before.end());
  for (const auto& [key, ignored] : keys) {
    const auto then = before.find(key), is = now.find(key);
    const bool was = then != before.end(), remains = is != now.end();
    if (was && remains ? then->second == is->second : !by_the_same_program) continue;
    if (changed.size() == most_changes) break;
    changed[key] = {was ? Json(shown(then->second)) : Json(nullptr), remains ? Json(shown(is->second)) : Json(nullptr)};
  }
  return changed;
}

Values settings_before(const fs::path& run_dir) {
  try {
    return config::flatten(read_file(run_dir / run_file::config));
  } catch (const Error&) {
    return {};
  }
}

// What a full disk has cut short would take the next line along.
bool ends_within_a_line(const fs::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  return file && file.tellg() > 0 && file.seekg(-1, std::ios::end) && file.get() != '\n';
}

}  // namespace

bool add_start(const fs::path& run_dir, const RunDescription& description, const Start& start) {
  const auto path = run_dir / run_file::starts;
  const auto now = surroundings_in(nlohmann::json::parse(description.environment, nullptr, /*allow_exceptions=*/false));
  const auto before = surroundings_in(object_or_null(run_dir / run_file::environment));
  auto changed = changes_around(before, now);
  for (const auto& [key, values] : changed.items())
    log::info("changed since the last start: {}: {} -> {}", key, values[0].get<std::string>(),
              values[1].get<std::string>());
  const bool by_the_same_program = now.ranks > 0 && before.ranks > 0 && now.versions == before.versions;
  changed.update(changed_settings(settings_before(run_dir), config::flatten(description.config), by_the_same_program));

  const auto checkpoint = start.path();
  Json line = {{"time", utc_now()},
               {"job", optional_to_json(slurm::number("SLURM_JOB_ID"))},
               {"restart", optional_to_json(slurm::number("SLURM_RESTART_COUNT"))},
               {"step", start.state.step},
               {"checkpoint", checkpoint ? Json(*checkpoint) : Json(nullptr)},
               {"ranks", now.ranks},
               {"trainers", now.trainers},
               {"producers", now.producers},
               {"hosts", now.hosts}};
  line.update(Json(now.versions));
  line["changed"] = std::move(changed);
  line["before"] = end_before(run_dir);
  AppendFile file(path);
  file.add(fmt::format("{}{}\n", ends_within_a_line(path) ? "\n" : "", dump_any(line)));
  return file.sync();
}

}  // namespace millrace
