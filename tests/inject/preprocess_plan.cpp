#include "preprocess_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "storm/pipeline.h"

namespace millrace::inject {
namespace {

const char* const cache_name = "cache";
constexpr int ranks = 2, batch = 8, rows_per_file = 4;

// ---- lives -------------------------------------------------------------------------------------------------------

// The cache and the run's folder lie in `folder`. NOTE [Straight caches]: whoever encodes an archive begins a file with
// its first row that is missing and ends it `rows_per_file` later, so all lives together make the files of a single
// one, and the same rows make the same bytes.
Command preprocess_command(const fs::path& program, const Workshop& workshop, const fs::path& folder, int of_ranks) {
  Command command = storm::mpirun(of_ranks);
  command.words.insert(
      command.words.end(),
      {program.string(), "preprocess", "run.dir=" + (folder / "run").string(),
       "encode.cache=" + (folder / cache_name).string(), "run.device=cpu",
       "model.pipeline=" + workshop.pipeline.string(), "data.train.path=" + workshop.archives.string(),
       "data.index=never", "data.threads=1", fmt::format("transform.resolution={}", storm::pipeline_resolution),
       fmt::format("encode.batch_size={}", batch), fmt::format("encode.rows_per_file={}", rows_per_file)});
  return command;
}

fs::path folder_of_straight(const Workshop& workshop) {
  return workshop.folder / "preprocess-straight";
}
fs::path folder_of_begun(const Workshop& workshop) {
  return workshop.folder / "preprocess-begun";
}

// A whole cache, and one with a file that is complete and one in tmp/: its only rank was killed.
void prepare(const Workshop& workshop) {
  const auto straight = folder_of_straight(workshop), begun = folder_of_begun(workshop);
  expect_success(
      live(workshop, preprocess_command(workshop.millrace, workshop, straight, ranks), straight, "straight"));
  const auto report = nlohmann::json::parse(
      storm::output_of({{workshop.millrace.string(), "inspect", "--json", (straight / cache_name).string()}}));
  ensure(report.at("complete") == true && report.at("accepted") == data_files * rows_per_data_file,
         "a straight run encodes every row once");
  auto command = preprocess_command(workshop.injecting, workshop, begun, 1);
  inject(command, fmt::format("kill@0:*:fsync={}/tmp/scratch.h5:2", cache_name));
  const auto life = live(workshop, command, begun, "begun");
  ensure(life.ending.exit_code != 0 && !fs::is_empty(begun / cache_name / "tmp"), "a cache is begun");
}

void copy_start(const Workshop& workshop, Start start, const fs::path& folder) {
  fs::create_directories(folder);
  if (start == Start::resumed)
    fs::copy(folder_of_begun(workshop) / cache_name, folder / cache_name, fs::copy_options::recursive);
}

// ---- what holds after a life -------------------------------------------------------------------------------------

// All files of a cache, by their paths in it.
std::set<std::string> files_of(const fs::path& cache) {
  std::set<std::string> files;
  if (!fs::exists(cache)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(cache))
    if (entry.is_regular_file()) files.insert(entry.path().lexically_relative(cache).string());
  return files;
}

bool is_temporary(const std::string& file) {
  return file.starts_with("tmp/") || file.find(".tmp") != file.npos;
}

bool names_rows(const std::string& file) {
  return file.starts_with("rows/") && file.ends_with(".json");
}

// At any time: what has its final name is complete, and nothing else than in a straight run.
Troubles check_files(const fs::path& cache, const fs::path& straight) {
  Troubles troubles;
  const auto files = files_of(cache);
  for (const auto& file : files) {
    if (is_temporary(file)) continue;
    if (!fs::exists(straight / file)) {
      troubles.push_back(file + " is in no straight run's cache");
    } else if (read_file(cache / file) != read_file(straight / file)) {
      troubles.push_back(file + " is not that of a straight run");
    }
    if (const auto rows = fs::path(file).replace_extension(".h5").string(); names_rows(file) && !files.contains(rows))
      troubles.push_back(file + " is there without " + rows);
  }
  return troubles;
}

// Where an archive ends, for those who come before MANIFEST.json says it: nobody fails for not being able to write it.
bool is_end(const std::string& file) {
  return file.starts_with("rows/") && file.ends_with("/END");
}

Troubles check_nothing_missing(const fs::path& cache, const fs::path& straight) {
  Troubles troubles;
  for (const auto& file : files_of(straight))
    if (!is_end(file) && !fs::exists(cache / file)) troubles.push_back(file + " is missing");
  return troubles;
}

Troubles check_no_temporaries(const fs::path& cache) {
  Troubles troubles;
  for (const auto& file : files_of(cache))
    if (is_temporary(file)) troubles.push_back(file + " is left over");
  return troubles;
}

Troubles run_trial(const Workshop& workshop, Start start, const Site& site, Kind kind, const fs::path& folder) {
  const auto cache = folder / cache_name, straight = folder_of_straight(workshop) / cache_name;
  copy_start(workshop, start, folder);
  auto command = preprocess_command(workshop.injecting, workshop, folder, ranks);
  inject(command, site.fault(kind, cache_name).text);
  const auto faulty = live(workshop, command, folder, "faulty");
  auto troubles = check_end(faulty, is_deadly(kind) ? ExitCodes{} : ExitCodes{0, 74});
  const auto add = [&](const Troubles& more) { troubles.insert(troubles.end(), more.begin(), more.end()); };
  add(check_files(cache, straight));
  if (faulty.ending.exit_code == 0) add(check_nothing_missing(cache, straight));

  const auto complete = static_cast<int>(std::ranges::count_if(files_of(cache), names_rows));
  const auto next = live(workshop, preprocess_command(workshop.millrace, workshop, folder, ranks), folder, "next");
  if (next.ending.exit_code != 0) {
    troubles.push_back(next.ending.timed_out ? "the next start hangs"
                                             : fmt::format("the next start ends with {}", next.ending.exit_code));
  } else {
    const int rows = data_files * rows_per_data_file, missing = rows - complete * rows_per_file;
    const auto end = fmt::format("done: rows {0} accepted {0} rejected 0 | encoded {1} ", rows, missing);
    if (next.output.find(end) == std::string::npos) troubles.push_back("the next start does not say \"" + end + "\"");
    add(check_files(cache, straight));
    add(check_nothing_missing(cache, straight));
    add(check_no_temporaries(cache));
  }
  if (!troubles.empty()) troubles.push_back(describe(faulty, next));
  return troubles;
}

// ---- plan --------------------------------------------------------------------------------------------------------

std::vector<Site> changing_calls(const Workshop& workshop, Start start) {
  const auto folder = workshop.folder / fmt::format("preprocess-count-{}", static_cast<int>(start));
  copy_start(workshop, start, folder);
  auto sites = count_calls(workshop, preprocess_command(workshop.injecting, workshop, folder, ranks), ranks,
                           folder / cache_name, folder);
  fs::remove_all(folder);
  for (Site& site : sites)
    if (site.call == Call::mkdir) site.rank.reset();  // who makes a folder of both is chance
  return sites;
}

}  // namespace

std::vector<Trial> plan_preprocess_calls(const Workshop& workshop) {
  prepare(workshop);
  std::vector<Trial> trials;
  for (const auto start : {Start::fresh, Start::resumed})
    for (const Site& site : changing_calls(workshop, start))
      for (const Kind kind : kinds_at(site))
        trials.push_back(
            {fmt::format("preprocess {}: {}", start == Start::fresh ? "fresh" : "resumed",
                         site.fault(kind, cache_name).text),
             [=, &workshop](const fs::path& folder) { return run_trial(workshop, start, site, kind, folder); }});
  return trials;
}

}  // namespace millrace::inject
