#include "train_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "storm/compare.h"
#include "storm/pipeline.h"
#include "storm/run_folder.h"

namespace millrace::inject {
namespace {

const char* const run_name = "run";
constexpr int steps = 6, save_every = 2;

// ---- lives -------------------------------------------------------------------------------------------------------

// Indices of tars lie beside the run's folder.
fs::path index_folder(const fs::path& run) {
  return run.parent_path() / "indices";
}

Command train_command(const fs::path& program, const Workshop& workshop, const Layout& layout, const fs::path& run,
                      int duration) {
  Command command = storm::mpirun(layout.ranks);
  auto& words = command.words;
  words.insert(words.end(), {program.string(),
                             "train",
                             "run.dir=" + run.string(),
                             "run.device=cpu",
                             "model.pipeline=" + workshop.pipeline.string(),
                             "data.train.path=" + (layout.tables ? workshop.tables : workshop.archives).string(),
                             "data.index=" + index_folder(run).string(),
                             fmt::format("transform.resolution={}", storm::pipeline_resolution),
                             "encode.batch_size=8",
                             "data.threads=1",
                             "data.shuffle_block=2",
                             "batch.global=8",
                             "batch.micro=2",
                             "optim.lr=1e-3",
                             "optim.warmup=0 steps",
                             "log.ids=true",
                             "log.every=1 steps",
                             fmt::format("checkpoint.every={} steps", save_every),
                             "checkpoint.keep=1",
                             fmt::format("duration={} steps", duration)});
  if (layout.tables) words.push_back("data.train.type=parquet");
  if (layout.producers) words.push_back(fmt::format("roles.producers={}", layout.producers));
  return command;
}

// Layouts are prepared at the same time: each has a folder, with indices, of its own.
fs::path layout_folder(const Workshop& workshop, const Layout& layout) {
  return workshop.folder / (layout.name + "-runs");
}
fs::path straight_run(const Workshop& workshop, const Layout& layout) {
  return layout_folder(workshop, layout) / "straight";
}
fs::path begun_run(const Workshop& workshop, const Layout& layout) {
  return layout_folder(workshop, layout) / "begun";
}

// A run that is resumed finds the indices of its tars, a fresh one makes them.
void copy_start(const Workshop& workshop, const Layout& layout, Start start, const fs::path& run) {
  if (start == Start::fresh) return;
  const auto begun = begun_run(workshop, layout);
  fs::copy(begun, run, fs::copy_options::recursive);
  if (!layout.tables) fs::copy(index_folder(begun), index_folder(run));
}

// ---- what holds after a life -------------------------------------------------------------------------------------

// The largest number that follows `text` in the lines that the program itself has written.
int largest_after(const std::string& output, const std::string& text) {
  int largest = 0;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const auto at = line.find(text);
    if (at == line.npos || line.starts_with("millrace_inject:") || line.find("is not used") != line.npos) continue;
    largest = std::max(largest, std::atoi(line.c_str() + at + text.size()));
  }
  return largest;
}

Troubles check_checkpoints(const Workshop& workshop, const fs::path& run, const fs::path& folder) {
  Troubles troubles;
  for (const int step : storm::listed_checkpoints(run)) {
    const auto path = storm::checkpoint_folder(run, step);
    const auto life = live(workshop, {{workshop.millrace.string(), "inspect", path.string()}}, folder,
                           fmt::format("inspect-{}", step));
    if (life.ending.exit_code != 0) troubles.push_back(fmt::format("{} is not valid: {}", path.string(), life.output));
  }
  return troubles;
}

Troubles check_leftovers(const fs::path& run) {
  Troubles troubles;
  for (const auto& entry : fs::recursive_directory_iterator(run)) {
    const auto name = entry.path().filename().string();
    if (name.find(".tmp") != name.npos || name.find(".trash") != name.npos)
      troubles.push_back(entry.path().string() + " is left over");
  }
  return troubles;
}

// Lines of a side file that could not be written are lost for good. Then the rest is compared.
Troubles compare(const Workshop& workshop, const TrainTrial& trial, const fs::path& run, const Life& faulty) {
  const auto straight = straight_run(workshop, trial.layout);
  const auto compared = [&] { return storm::compare_runs(run, straight, steps, /*to_the_bit=*/true); };
  const auto lacks_lines = [](const Troubles& troubles, const std::string& file) {
    return std::ranges::any_of(troubles, [&](const auto& trouble) { return trouble.starts_with(file + " has "); });
  };
  auto troubles = compared();
  for (const std::string file : {"ids.jsonl", "metrics.jsonl"}) {
    if (trial.lossy.find(file) == std::string::npos || !lacks_lines(troubles, file)) continue;
    fs::copy_file(straight / file, run / file, fs::copy_options::overwrite_existing);
    troubles = compared();
    const auto said = std::ranges::any_of(std::vector{":", " "}, [&](const std::string& mark) {
      return faulty.output.find(file + mark) != std::string::npos;
    });
    if (!trial.silent && !said) troubles.push_back(file + " lacks lines, and nobody said so");
  }
  return troubles;
}

Troubles run_trial(const Workshop& workshop, const TrainTrial& trial, const fs::path& folder) {
  const auto run = folder / run_name;
  fs::create_directories(folder);
  copy_start(workshop, trial.layout, trial.start, run);
  auto command = train_command(workshop.injecting, workshop, trial.layout, run, steps);
  for (const auto& fault : trial.faults) inject(command, fault);
  command.words.insert(command.words.end(), trial.words.begin(), trial.words.end());
  const auto faulty = live(workshop, command, folder, "faulty");
  auto troubles = check_end(faulty, trial.ending);
  if (faulty.output.find(trial.says) == std::string::npos) troubles.push_back("nobody says \"" + trial.says + "\"");
  const auto add = [&](const Troubles& more) { troubles.insert(troubles.end(), more.begin(), more.end()); };
  if (!trial.damages) add(check_checkpoints(workshop, run, folder));

  auto listed = storm::listed_checkpoints(run);
  if (trial.damages && !listed.empty()) listed.pop_back();
  const int newest = listed.empty() ? 0 : listed.back();
  const int committed = std::max(trial.start == Start::resumed ? save_every : 0,
                                 largest_after(faulty.output, "checkpoint " + run.string() + "/checkpoints/step-"));
  const auto next =
      live(workshop, train_command(workshop.millrace, workshop, trial.layout, run, steps), folder, "next");
  const int from =
      std::max(largest_after(next.output, "steps, from step "), largest_after(next.output, "has reached step "));
  if (next.ending.exit_code != 0) {
    troubles.push_back(next.ending.timed_out ? "the next start hangs"
                                             : fmt::format("the next start ends with {}", next.ending.exit_code));
  } else {
    if (from != newest || (from < committed && !trial.damages))
      troubles.push_back(
          fmt::format("the next start begins at step {}; the newest checkpoint was that of {}, {} was "
                      "committed",
                      from, newest, committed));
    if (trial.compares) add(compare(workshop, trial, run, faulty));
    if (from < steps) add(check_leftovers(run));  // with nothing to train little is touched
  }
  if (!troubles.empty()) troubles.push_back(describe(faulty, next));
  return troubles;
}

}  // namespace

void prepare(const Workshop& workshop, const Layout& layout) {
  const auto plain = [&](const fs::path& run, int duration) {
    expect_success(live(workshop, train_command(workshop.millrace, workshop, layout, run, duration),
                        layout_folder(workshop, layout), run.filename().string()));
  };
  plain(straight_run(workshop, layout), steps);
  plain(begun_run(workshop, layout), save_every);
}

std::vector<Site> changing_calls(const Workshop& workshop, const Layout& layout, Start start) {
  const auto folder = workshop.folder / fmt::format("{}-count-{}", layout.name, static_cast<int>(start));
  const auto run = folder / run_name;
  fs::create_directories(folder);
  copy_start(workshop, layout, start, run);
  const auto sites =
      count_calls(workshop, train_command(workshop.injecting, workshop, layout, run, steps), layout.ranks, run, folder);
  fs::remove_all(folder);
  return sites;
}

std::string fault_at(const Site& site, Kind kind) {
  return site.fault(kind, run_name).text;
}

Trial to_trial(const Workshop& workshop, const TrainTrial& trial) {
  std::string name = fmt::format("{} {}:", trial.layout.name, trial.start == Start::fresh ? "fresh" : "resumed");
  for (const auto& fault : trial.faults) name += " " + fault;
  for (const auto& word : trial.words) name += " " + word;
  return {name, [&workshop, trial](const fs::path& folder) { return run_trial(workshop, trial, folder); }};
}

}  // namespace millrace::inject
