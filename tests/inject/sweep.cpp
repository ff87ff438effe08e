// millrace_sweep: a fault at every call that changes a run's folder, and what becomes of the run. See README.md,
// usage().
//   [--dry]
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "millrace/core/error.h"
#include "millrace/core/stopwatch.h"
#include "storm/archives.h"
#include "storm/pipeline.h"
#include "storm/process.h"
#include "trial.h"

namespace millrace::inject {
namespace {

struct Options {
  std::size_t cases = 0;  // 0 = all
  double seconds = 0;     // none is begun later; 0 = no limit
  std::uint64_t seed = 1;
  std::size_t jobs = 0;  // 0 = one on each core
  std::string only;      // in a trial's line
  // places: of the faults elsewhere than in the folder
  fs::path millrace = MILLRACE_BINARY, injecting = MILLRACE_INJECT_BINARY;
  bool places = false, keep = false, dry = false;
};

[[noreturn]] void usage() {
  fmt::print(stderr,
             "usage: millrace_sweep [--cases N] [--seconds S] [--seed K] [--jobs J] [--only TEXT] [--places]\n"
             "                      [--inject FILE] [--keep] [--dry]\n");
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
      options.places = true;
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

Workshop open_workshop(const Options& options) {
  Workshop workshop;
  std::string pattern = fs::temp_directory_path() / "millrace-sweep-XXXXXX";
  ensure(::mkdtemp(pattern.data()) != nullptr, "no temporary folder");
  workshop.folder = pattern;
  workshop.millrace = options.millrace;
  workshop.injecting = options.injecting;
  workshop.pipeline = workshop.folder / "pipeline";
  workshop.archives = workshop.folder / "archives";
  const auto init = fmt::format("'{}' init --preset tiny --out '{}' > /dev/null", workshop.millrace.string(),
                                workshop.pipeline.string());
  ensure(std::system(init.c_str()) == 0, "init makes a pipeline");
  storm::shrink_pipeline(workshop.pipeline);
  storm::Case drawn;
  drawn.seed = 7;
  drawn.data.rows = {16, 16};
  storm::write_archives(drawn, workshop.archives);
  return workshop;
}

std::vector<int> cores() {
  cpu_set_t allowed;
  ensure(sched_getaffinity(0, sizeof allowed, &allowed) == 0, "the kernel tells the cores");
  std::vector<int> found;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed)) found.push_back(core);
  return found;
}

// Every rank then has one thread, on any machine: the last bits of an encoding depend on the number of threads.
void stay_on(int core) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ensure(sched_setaffinity(0, sizeof one, &one) == 0, "a thread can stay on its core");
}

void shuffle(std::vector<Trial>& trials, std::uint64_t seed) {
  storm::Dice dice(seed);
  for (std::size_t i = trials.size(); i > 1; --i)
    std::swap(trials[i - 1], trials[static_cast<std::size_t>(dice.below(static_cast<int>(i)))]);
}

int sweep(const Options& options) {
  storm::adopt_orphans();
  const auto places = cores();
  stay_on(places[0]);
  const auto workshop = open_workshop(options);
  const std::vector<Layout> layouts = {{"both", 2, 0}, {"split", 3, 1}};
  std::vector<Trial> trials;
  for (const Layout& layout : layouts) {
    prepare(workshop, layout);
    for (auto& trial : options.places ? plan_places(layout) : plan_calls(workshop, layout))
      if (trial.describe().find(options.only) != std::string::npos) trials.push_back(std::move(trial));
  }
  const auto all = trials.size();
  shuffle(trials, options.seed);
  if (options.cases > 0 && options.cases < all) trials.resize(options.cases);

  const Stopwatch since_start;
  std::atomic<std::size_t> next = 0, done = 0, failed = 0;
  std::mutex console;
  const auto work = [&] {
    for (std::size_t i; (i = next++) < trials.size();) {
      if (options.seconds > 0 && since_start.seconds() > options.seconds) return;
      const auto folder = workshop.folder / fmt::format("trial-{}", i);
      Troubles troubles;
      if (!options.dry) try {
          troubles = run_trial(workshop, trials[i], folder);
        } catch (const std::exception& error) {
          troubles = {error.what()};
        }
      ++done;
      if (!troubles.empty()) ++failed;
      const std::lock_guard lock(console);
      fmt::print("{}  {}\n", trials[i].describe(), troubles.empty() ? "ok" : "FAILED");
      for (const auto& trouble : troubles) fmt::print("    {}\n", trouble);
      std::fflush(stdout);
      std::error_code ignored;
      if (troubles.empty() && !options.keep) fs::remove_all(folder, ignored);
    }
  };
  {
    std::vector<std::jthread> workers;
    for (std::size_t i = 0; i < (options.jobs > 0 ? options.jobs : places.size()); ++i)
      workers.emplace_back([&, core = places[i % places.size()]] {
        stay_on(core);
        work();
      });
  }
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
