#include "millrace/report/run_record.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "json_fields.h"
#include "millrace/config/flatten.h"
#include "millrace/core/clock.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/run_files.h"
#include "millrace/core/storage_error.h"
#include "millrace/io/json.h"
#include "run_events.h"

namespace millrace {
namespace {

// Null where it is none.
nlohmann::json object_of(const std::string& text) try {
  auto json = parse_python_json(text, "");
  return json.is_object() ? json : nlohmann::json(nullptr);
} catch (const Error&) {
  return nullptr;
}

// Null where the file is missing or broken, or goes meanwhile: a report is for runs in any state.
nlohmann::json read_if_there(const fs::path& path) try {
  return fs::is_regular_file(path) ? object_of(read_file(path)) : nlohmann::json(nullptr);
} catch (const Error&) {
  return nullptr;
}

template <class Use>
void for_each_object(const fs::path& path, Use&& use) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);)
    if (const auto json = object_of(line); !json.is_null()) use(json);
  if (in.bad()) fail_errno("cannot read", path);
}

// A text of an object; `fallback` where it has none of that name, or another type there. Runs may be anybody's.
std::string text_in(const nlohmann::json& json, const char* key, const std::string& fallback = "") {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : fallback;
}

// 0 where it has none.
std::int64_t step_in(const nlohmann::json& json) {
  return integer_in(json, "step").value_or(0);
}

std::optional<double> number_of(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_null()) return std::nan("");
  return std::nullopt;
}

void add_point(Series& series, std::int64_t step, double value) {
  while (!series.steps.empty() && series.steps.back() >= step) series.steps.pop_back(), series.values.pop_back();
  series.steps.push_back(step);
  series.values.push_back(value);
}

// The step that the start which environment.json is of went on from: lines up to there are older, whatever their times,
// since a clock may go back. One that had nothing left to train has no ranks, and left that file as it was. -1: before
// all steps, of versions that wrote no starts down.
std::int64_t step_newest_start_went_on_from(const RunRecord& run) {
  for (auto start = run.starts.rbegin(); start != run.starts.rend(); ++start)
    if (start->value("ranks", nlohmann::json()) != 0) return step_in(*start);
  return -1;
}

void add_line(RunRecord& run, const nlohmann::json& line, std::int64_t newest_start_from) {
  const auto step = integer_in(line, "step");
  if (!step) return;
  for (const auto& [field, value] : line.items()) {
    if (const auto number = number_of(value)) add_point(run.metrics[field], *step, *number);
    if (!value.is_object()) continue;
    for (const auto& [key, part] : value.items())
      if (const auto number = number_of(part)) add_point(run.metrics[field + "/" + key], *step, *number);
  }
  if (const auto time = line.find("time"); time != line.end() && time->is_string()) {
    run.end = time->get<std::string>();
    if (*step > newest_start_from && run.end > text_in(run.environment, "time", "~"))
      run.newest_start_step = std::min(run.newest_start_step.value_or(*step), *step);
    if (run.begin.empty()) run.begin = run.end;
  }
}

std::vector<SamplesPicture> find_pictures(const fs::path& folder) {
  std::vector<SamplesPicture> pictures;
  if (!fs::is_directory(folder)) return pictures;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("step-") && name.ends_with(".png") && name.size() > 9)
      pictures.push_back({std::strtoll(name.c_str() + 5, nullptr, 10), entry.path()});
  }
  std::ranges::sort(pictures, {}, &SamplesPicture::step);
  return pictures;
}

// The network that the newest checkpoint has a part of.
nlohmann::json find_model(const fs::path& folder) {
  fs::path newest;
  if (fs::is_directory(folder))
    for (const auto& entry : fs::directory_iterator(folder)) {
      const auto name = entry.path().filename().string();
      if (name.starts_with("step-") && name.find('.') == name.npos && name > newest.filename().string())
        newest = entry.path();
    }
  if (newest.empty()) return nullptr;
  const auto manifest = read_if_there(newest / run_file::manifest);
  return manifest.is_object() ? manifest.value("model", nlohmann::json()) : nlohmann::json();
}

// Its first lines name the files: "# configs/sd2_base_256.yaml".
Template read_template(const fs::path& file) {
  if (!fs::is_regular_file(file)) return {};
  const auto text = read_file(file);
  Template base{"", config::flatten(text)};
  std::istringstream in(text);
  for (std::string line; std::getline(in, line) && line.starts_with("# ");)
    base.name += (base.name.empty() ? "" : ", ") + line.substr(2);
  return base;
}

// The last `components` of a folder's path.
std::string name_of(const fs::path& folder, int components = 1) {
  auto path = normal_path(folder);
  fs::path name;
  for (int i = 0; i < components && path.has_filename(); ++i, path = path.parent_path())
    name = name.empty() ? path.filename() : path.filename() / name;
  return name.string();
}

}  // namespace

const Series& RunRecord::series(const std::string& field) const {
  static const Series none;
  const auto found = metrics.find(field);
  return found == metrics.end() ? none : found->second;
}

double RunRecord::last(const std::string& field) const {
  const auto& values = series(field).values;
  return values.empty() ? std::nan("") : values.back();
}

std::string RunRecord::setting(const std::string& key) const {
  const auto found = settings.find(key);
  return found == settings.end() ? "" : found->second;
}

// In UTC; later than all times where that is not known.
static std::string written_at(const fs::path& file) {
  struct stat status {};
  return ::stat(file.c_str(), &status) == 0 ? utc_of(status.st_mtime) : "~";
}

// What was scored and painted beyond the place that the run has gone back to.
static void leave_out_abandoned(RunRecord& run) {
  auto last = step_in(run.state);
  if (const auto& steps = run.series("loss").steps; !steps.empty()) last = std::max(last, steps.back());
  if (last == 0) return;
  std::erase_if(run.evaluations, [&](const auto& line) { return step_in(line) > last; });
  const auto state = text_in(run.state, "state");
  // The newest line, and STATE, may be behind the newest picture, as long as that is of the newest start.
  const auto start = text_in(run.environment, "time");
  std::erase_if(run.pictures, [&](const auto& picture) {
    return picture.step > last && (state == "done" || written_at(picture.file) < start);
  });
}

RunRecord read_run(const fs::path& folder) {
  const bool has_metrics = fs::is_regular_file(folder / run_file::metrics);
  const bool has_settings = fs::is_regular_file(folder / run_file::config);
  if (!has_metrics && !has_settings)
    throw Error(Exit::io, fmt::format("{} is no run: neither metrics.jsonl nor config.yaml is there", folder.string()),
                "give the folder that was run.dir");
  RunRecord run;
  run.folder = folder;
  run.name = name_of(folder);
  run.environment = read_if_there(folder / run_file::environment);
  for_each_object(folder / run_file::starts, [&](const auto& line) { run.starts.push_back(line); });
  const auto newest_start_from = step_newest_start_went_on_from(run);
  for_each_object(folder / run_file::metrics, [&](const auto& line) { add_line(run, line, newest_start_from); });
  const auto& steps = run.series("loss").steps;
  if (!run.newest_start_step && !steps.empty() && run.environment.is_object() && run.environment.contains("time"))
    run.newest_start_step = steps.back() + 1;  // which has not got there
  for_each_object(folder / run_file::evaluations, [&](const auto& line) { run.evaluations.push_back(line); });
  // Lines stand as they were scored, often the newest checkpoint first.
  std::ranges::stable_sort(run.evaluations, {}, step_in);
  if (has_settings) run.settings = config::flatten(read_file(folder / run_file::config));
  run.base = read_template(folder / run_file::base_config);
  run.state = read_if_there(folder / run_file::state);
  run.ledger = read_if_there(folder / run_file::ledger);
  run.model = find_model(checkpoints_in(folder));
  run.pictures = find_pictures(folder / run_file::samples);
  run.events = read_events(run);
  leave_out_abandoned(run);
  return run;
}

void tell_apart(std::vector<RunRecord>& runs) {
  constexpr int most = 64;
  const auto have_one_name = [&] {
    std::set<std::string> names;
    for (const auto& run : runs) names.insert(run.name);
    return names.size() < runs.size();
  };
  for (int components = 2; components <= most && have_one_name(); ++components)
    for (auto& run : runs) run.name = name_of(run.folder, components);
}

}  // namespace millrace
