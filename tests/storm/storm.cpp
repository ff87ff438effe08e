// The storm: random trainings in random lives by the real program, each against a straight run. See README.md.
//   millrace_storm [--cases N] [--seed S] [--from K] [--jobs J] [--millrace FILE] [--limit SECONDS] [--keep] [--dry]
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "compare.h"
#include "epoch_coverage.h"
#include "life.h"
#include "millrace/core/stopwatch.h"
#include "process.h"

namespace millrace::storm {
namespace {

struct Options {
  int cases = 10, from = 0;
  std::size_t jobs = 0;  // 0 = one on each core
  std::uint64_t seed = 1;
  fs::path millrace = MILLRACE_BINARY;
  double limit = 90;
  bool keep = false, dry = false;
};

[[noreturn]] void usage() {
  fmt::print(stderr,
             "usage: millrace_storm [--cases N] [--seed S] [--from K] [--jobs J] [--millrace FILE] [--limit SECONDS] "
             "[--keep] [--dry]\n");
  std::exit(2);
}

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto value = [&] { return ++i < argc ? argv[i] : (usage(), argv[0]); };
    if (name == "--cases") {
      options.cases = std::atoi(value());
    } else if (name == "--seed") {
      options.seed = std::strtoull(value(), nullptr, 10);
    } else if (name == "--from") {
      options.from = std::atoi(value());
    } else if (name == "--jobs") {
      options.jobs = std::strtoull(value(), nullptr, 10);
    } else if (name == "--millrace") {
      options.millrace = fs::absolute(value());
    } else if (name == "--limit") {
      options.limit = std::atof(value());
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

// ---- one case ----------------------------------------------------------------------------------------------------

// From the first step to the last without a save in between, from the images.
Life straight_life(const Layout& layout) {
  Life life;
  life.layout = layout;
  life.save_every = 100'000;
  life.mpirun = layout.ranks > 1;
  return life;
}

// One rank that trains as the case's first life does, where one rank can.
Layout one_rank(const Case& drawn) {
  Layout layout = drawn.lives[0].layout;
  layout.ranks = 1;
  layout.producers = 0;
  return layout;
}

struct Outcome {
  Troubles troubles;
  std::string compared;  // how closely, when there are none
};

Outcome run_case(Site& site) {
  const Case& drawn = site.drawn;
  const auto truth = write_archives(drawn, site.archives());
  const auto reference = site.folder / "straight", run = site.folder / "run";
  auto troubles = live(site, "straight", straight_life(one_rank(drawn)), true);
  if (!troubles.empty()) return {troubles, {}};
  troubles = check_samples(reference, truth, drawn.steps);
  if (troubles.empty()) troubles = check_epoch_coverage(site, reference, truth);
  if (!troubles.empty()) {
    troubles.insert(troubles.begin(), "in the straight run");
    return {troubles, {}};
  }
  if (troubles = prepare_cache(site); !troubles.empty()) return {troubles, {}};
  for (std::size_t i = 0; i < drawn.lives.size(); ++i) {
    troubles = live(site, "run", drawn.lives[i]);
    if (troubles.empty()) troubles = compare_ids(run, reference);
    if (troubles.empty()) continue;
    troubles.insert(troubles.begin(), fmt::format("in life {} of {}", i + 1, drawn.lives.size()));
    return {troubles, {}};
  }
  const bool as_one = drawn.lives[0].layout.computes_like(one_rank(drawn));
  troubles = compare_runs(run, reference, drawn.steps, drawn.computed_alike() && as_one);
  const auto samples = check_samples(run, truth, drawn.steps);
  troubles.insert(troubles.end(), samples.begin(), samples.end());
  if (!troubles.empty()) return {troubles, {}};
  if (!drawn.computed_alike()) return {{}, fmt::format("to {:.0e}", weights_apart(run, reference, drawn.steps))};
  if (as_one) return {{}, "to the bit"};

  // The same once more on the case's own ranks: now every bit must be equal.
  troubles = live(site, "straight-alike", straight_life(drawn.lives[0].layout), true);
  if (troubles.empty()) troubles = compare_runs(run, site.folder / "straight-alike", drawn.steps, true);
  return {troubles, fmt::format("to the bit, one rank to {:.0e}", weights_apart(run, reference, drawn.steps))};
}

// True when the case held. A failed one keeps its folder. Its signals are added to `signals`, under the console's lock.
bool weather(const Workshop& workshop, const Options& options, int number, std::mutex& console, Signals& signals) {
  const auto seed = options.seed + static_cast<std::uint64_t>(number);
  const Case drawn = draw_case(seed);
  Site site{workshop, drawn, workshop.folder / fmt::format("case-{}", seed), {}, {}};
  const Stopwatch watch;
  Troubles troubles;
  std::string compared;
  if (!options.dry) {
    try {
      const auto outcome = run_case(site);
      troubles = outcome.troubles;
      compared = outcome.compared;
    } catch (const std::exception& error) {
      troubles.push_back(error.what());
    }
  }
  const std::lock_guard lock(console);
  signals.drawn += site.signals.drawn;
  signals.sent += site.signals.sent;
  fmt::print("{} {}: {}  {} ({:.1f} s, {} of {} signals sent)\n", number, seed, describe(drawn),
             troubles.empty() ? "ok " + compared : "FAILED", watch.seconds(), site.signals.sent, site.signals.drawn);
  if (!troubles.empty())
    fmt::print("  {}\n  commands:\n    {}\n  folder {}\n  again: millrace_storm --seed {} --cases 1\n",
               fmt::join(troubles, "\n  "), fmt::join(site.transcript, "\n    "), site.folder.string(), seed);
  std::fflush(stdout);
  if (troubles.empty() && !options.keep) fs::remove_all(site.folder);
  return troubles.empty();
}

// ---- all cases ---------------------------------------------------------------------------------------------------

int storm(const Options& options) {
  adopt_orphans();
  auto workshop = open_workshop(options.millrace, "millrace-storm");
  workshop.limit = options.limit;
  const auto help = output_of({{options.millrace.string(), "train", "--help", "data"}});
  workshop.shuffle_block = help.find("data.shuffle_block") != std::string::npos;
  std::atomic<int> next = options.from, failed = 0;
  std::mutex console;
  Signals signals;
  work_on(cores(), options.jobs, [&] {
    for (int number; (number = next++) < options.from + options.cases;)
      if (!weather(workshop, options, number, console, signals)) ++failed;
  });
  std::error_code ignored;
  if (failed == 0 && !options.keep) fs::remove_all(workshop.folder, ignored);
  fmt::print("{} passed, {} failed\n", options.cases - failed, failed.load());
  const bool come_too_late = signals.drawn >= 20 && 2 * signals.sent < signals.drawn;
  fmt::print("{} of {} signals were sent{}\n", signals.sent, signals.drawn,
             come_too_late ? ": lives mostly end before, and little is tried" : "");
  return failed == 0 && !come_too_late ? 0 : 1;
}

}  // namespace
}  // namespace millrace::storm

int main(int argc, char** argv) {
  try {
    return millrace::storm::storm(millrace::storm::read_options(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "millrace_storm: {}\n", error.what());
    return 1;
  }
}
