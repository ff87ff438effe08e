#include "run/run_history.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "millrace/checkpoint/line_files.h"
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
constexpr std::size_t most_faults = 10, most_changes = 100, longest_reason = 2000;
constexpr auto versions = {"millrace", "build", "program", "LibTorch", "CUDA", "MPI", "system"};

// Null where the file is missing or makes no sense: it may be a killed process's.
nlohmann::json object_or_null(const fs::path& path) {
  try {
    return read_json_object(path);
  } catch (const Error&) {
    return nullptr;
  }
}

nlohmann::json environment_from(const std::string& text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
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
      text.resize(std::min(text.size(), longest_reason));
    }
  }
  return parts;
}

Json faults_in(const fs::path& run_dir) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_dir / run_file::fault, error)) files.push_back(entry.path());
  std::ranges::sort(files);
  Json faults = Json::array();
  for (const auto& file : files) {
    if (faults.size() == most_faults) break;
    const auto fault = object_or_null(file);
    if (fault.is_null()) continue;
    faults.push_back(parts_of(fault, {"rank", "host", "role", "gpu", "phase", "step", "exit", "reason", "time", "at"}));
  }
  return faults;
}

// The newest step that the start before has told of; null where it came to none, and the lines are of an earlier one.
Json reached_in(const fs::path& run_dir) {
  std::error_code error;
  const auto lines = run_dir / run_file::metrics;
  const auto told = fs::last_write_time(lines, error),
             began = fs::last_write_time(run_dir / run_file::environment, error);
  if (!error && told < began) return nullptr;
  const auto step = newest_line_step(lines);
  return step ? Json(*step) : Json(nullptr);
}

// How the start before this one ended; null for a first one.
Json end_before(const fs::path& run_dir) {
  const auto state = object_or_null(run_dir / run_file::state);
  if (state.is_null()) return nullptr;
  Json end = parts_of(state, {"state", "step", "exit", "reason"});
  end["reached"] = reached_in(run_dir);
  end["time"] = written_at(run_dir / run_file::state);
  end["faults"] = faults_in(run_dir);
  return end;
}

Json number_or_null(const char* slurm_variable) {
  const auto number = slurm::number(slurm_variable);
  return number ? Json(*number) : Json(nullptr);
}

struct Ranks {
  std::set<std::string> hosts;
  std::size_t all = 0, trainers = 0, producers = 0;  // one that does both is a trainer
};

Ranks ranks_of(const nlohmann::json& environment) {
  Ranks ranks;
  for (const auto& rank : environment.value("ranks", nlohmann::json::array())) {
    ++ranks.all;
    ranks.hosts.insert(rank.value("host", ""));
    ++(rank.value("role", "") == "producer" ? ranks.producers : ranks.trainers);
  }
  return ranks;
}

// What may differ between two starts besides the settings.
Values surroundings(const nlohmann::json& environment) {
  Values values;
  if (!environment.is_object()) return values;
  try {
    const auto ranks = ranks_of(environment);
    values = {{"hosts", fmt::format("{}", fmt::join(ranks.hosts, ", "))},
              {"trainers", fmt::to_string(ranks.trainers)},
              {"producers", fmt::to_string(ranks.producers)}};
    for (const char* key : versions) values[key] = environment.value(key, "");
  } catch (const nlohmann::json::exception&) {  // of another version
  }
  return values;
}

// By key what it was, and is.
Json differences(const Values& before, const Values& now) {
  Json changed = Json::object();
  for (const auto& [key, value] : now) {
    const auto then = before.find(key);
    if (then == before.end() || then->second == value || changed.size() == most_changes) continue;
    changed[key] = {then->second.substr(0, longest_reason), value.substr(0, longest_reason)};
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

}  // namespace

void add_start(const fs::path& run_dir, const RunDescription& description, const Start& start) {
  const auto environment = environment_from(description.environment);
  auto changed = differences(surroundings(object_or_null(run_dir / run_file::environment)), surroundings(environment));
  for (const auto& [key, values] : changed.items())
    log::info("changed since the last start: {}: {} -> {}", key, values[0].get<std::string>(),
              values[1].get<std::string>());
  changed.update(differences(settings_before(run_dir), config::flatten(description.config)));

  const auto ranks = ranks_of(environment);
  const auto checkpoint = start.path();
  Json line = {{"time", utc_now()},
               {"job", number_or_null("SLURM_JOB_ID")},
               {"restart", number_or_null("SLURM_RESTART_COUNT")},
               {"step", start.state.step},
               {"checkpoint", checkpoint ? Json(*checkpoint) : Json(nullptr)},
               {"ranks", ranks.all},
               {"trainers", ranks.trainers},
               {"producers", ranks.producers},
               {"hosts", ranks.hosts}};
  for (const char* key : versions) line[key] = environment.value(key, "");
  line["changed"] = std::move(changed);
  line["before"] = end_before(run_dir);
  AppendFile file(run_dir / run_file::starts);
  file.add(dump_any(line) + "\n");
  file.flush();
}

}  // namespace millrace
