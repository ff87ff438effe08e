// millrace_sweep: a fault at every call by which a command changes its files, and what becomes of it. See README.md,
// usage().
#include <fmt/format.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <regex>
#include <set>

#include "millrace/core/stopwatch.h"
#include "preprocess_plan.h"
#include "storm/case.h"
#include "train_plans.h"

namespace millrace::inject {
namespace {

struct Options {
  std::vector<Trial> (*plan)(const Workshop&) = plan_train_calls;
  std::size_t cases = 0;  // 0 = all
  bool alike = true;      // as well trials that differ in step, count, layout or start alone
  double seconds = 0;     // none is begun later; 0 = no limit
  std::uint64_t seed = 1;
  std::size_t jobs = 0;  // 0 = one on each core
  std::string only;      // in a trial's line
  fs::path millrace = MILLRACE_BINARY, injecting = MILLRACE_INJECT_BINARY;
  bool keep = false, dry = false;
};

[[noreturn]] void usage() {
  fmt::print(stderr,
             "usage: millrace_sweep [--places | --preprocess] [--one-of-a-kind] [--cases N] [--seconds S]\n"
             "                      [--seed K] [--jobs J] [--only TEXT] [--inject FILE] [--keep] [--dry]\n");
  std::exit(2);
}

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto value = [&] { return ++i < argc ? argv[i] : (usage(), argv[0]); };
    if (name == "--cases") {
      options.cases = std::strtoull(value(), nullptr, 10);
    } else if (name == "--seconds") {
      options.seconds = std::atof(value());
    } else if (name == "--seed") {
      options.seed = std::strtoull(value(), nullptr, 10);
    } else if (name == "--jobs") {
      options.jobs = std::strtoull(value(), nullptr, 10);
    } else if (name == "--only") {
      options.only = value();
    } else if (name == "--inject") {
      options.injecting = fs::absolute(value());
    } else if (name == "--places") {
      options.plan = plan_train_places;
    } else if (name == "--preprocess") {
      options.plan = plan_preprocess_calls;
    } else if (name == "--one-of-a-kind") {
      options.alike = false;
    } else if (name == "--keep") {
      options.keep = true;
    } else if (name == "--dry") {
      options.dry = true;
    } else {
      usage();
    }
  }
  return options;
}

void shuffle(std::vector<Trial>& trials, std::uint64_t seed) {
  storm::Dice dice(seed);
  for (std::size_t i = trials.size(); i > 1; --i)
    std::swap(trials[i - 1], trials[static_cast<std::size_t>(dice.below(static_cast<int>(i)))]);
}

// Which rank, which call on which file, which fault; not after how many such calls, of which step, layout and start.
std::string kind_of(const std::string& name) {
  static const std::regex beginning("^[^:]*: "), count(R"(:\d+\+?( [^ ]*)*$)"), step(R"(step-\d+)");
  const auto fault = std::regex_replace(std::regex_replace(name, beginning, ""), count, "");
  return std::regex_replace(fault, step, "step");
}

void keep_one_of_a_kind(std::vector<Trial>& trials) {
  std::set<std::string> seen;
  std::erase_if(trials, [&](const Trial& trial) { return !seen.insert(kind_of(trial.name)).second; });
}

// True when nothing is wrong. A failed trial keeps its folder.
bool try_one(const Trial& trial, const fs::path& folder, const Options& options, std::mutex& console) {
  Troubles troubles;
  if (!options.dry) try {
      troubles = trial.run(folder);
    } catch (const std::exception& error) {
      troubles = {error.what()};
    }
  const std::lock_guard lock(console);
  fmt::print("{}  {}\n", trial.name, troubles.empty() ? "ok" : "FAILED");
  for (const auto& trouble : troubles) fmt::print("    {}\n", trouble);
  std::fflush(stdout);
  std::error_code ignored;
  if (troubles.empty() && !options.keep) fs::remove_all(folder, ignored);
  return troubles.empty();
}

int sweep(const Options& options) {
  storm::adopt_orphans();
  const auto cores = storm::cores();
  storm::stay_on(cores[0]);
  const auto workshop = open_workshop(options.millrace, options.injecting, cores);
  auto trials = options.plan(workshop);
  std::erase_if(trials, [&](const Trial& trial) { return trial.name.find(options.only) == std::string::npos; });
  const auto all = trials.size();
  shuffle(trials, options.seed);
  if (!options.alike) keep_one_of_a_kind(trials);
  if (options.cases > 0 && options.cases < trials.size()) trials.resize(options.cases);

  const Stopwatch since_start;
  std::atomic<std::size_t> next = 0, done = 0, failed = 0;
  std::mutex console;
  storm::work_on(cores, options.jobs, [&] {
    for (std::size_t i; (i = next++) < trials.size();) {
      if (options.seconds > 0 && since_start.seconds() > options.seconds) return;
      if (!try_one(trials[i], workshop.folder / fmt::format("trial-{}", i), options, console)) ++failed;
      ++done;
    }
  });
  std::error_code ignored;
  if (failed == 0 && !options.keep) {
    fs::remove_all(workshop.folder, ignored);
  } else {
    fmt::print("folders: {}\n", workshop.folder.string());
  }
  fmt::print("{} passed, {} failed, of {} there are\n", done - failed, failed.load(), all);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace millrace::inject

int main(int argc, char** argv) {
  try {
    return millrace::inject::sweep(millrace::inject::read_options(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "millrace_sweep: {}\n", error.what());
    return 1;
  }
}
