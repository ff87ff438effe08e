// preflight: what a long run will need, tried on the ranks it will have, in a minute or two.
#include <unistd.h>

#include <cstdlib>

#include "command.h"
#include "millrace/comm/agree.h"
#include "millrace/comm/watchdog.h"
#include "millrace/core/deadline.h"
#include "millrace/core/log.h"
#include "millrace/core/process_name.h"
#include "preflight/checks.h"
#include "preflight/time_limit.h"
#include "run/session.h"

namespace millrace {
namespace {

constexpr double join_seconds = 90;    // for all ranks to find each other
constexpr double silent_seconds = 20;  // of a rank that is stopped
constexpr double cleaning_seconds = 20;

std::string this_process() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return fmt::format("rank {} on {}", rank, host);
  return host;
}

// The end when a rank hangs: nobody waits for it, and nothing stays in run.dir.
[[noreturn]] void leave(const Error& error, preflight::ScratchFolder* scratch) {
  leave_within(cleaning_seconds, error.exit(), error.what());  // run.dir may be what hangs
  report(error);
  if (scratch) scratch->remove();
  ::_exit(static_cast<int>(error.exit()));
}

void run_checks(World& world, const CommandLine& line, const TrainConfig& config, preflight::Checkup& checkup,
                preflight::ScratchFolder& scratch) {
  using namespace preflight;
  check_clocks(checkup);
  const auto machines = check_machines(checkup, world, config);
  auto pipeline = check_model_folder(checkup, config);
  const auto plan = check_plan(checkup, machines, config, std::move(pipeline));
  if (line.dry_run) return;
  check_run_folder(checkup, scratch);
  check_data(checkup, config, plan);
  check_network(checkup, config, plan);
  const auto checkpoint_bytes = check_step(checkup, machines.session, config, plan);
  check_space(checkup, config, checkpoint_bytes);
}

int check_allocation(World& world, const CommandLine& line, preflight::Checkup& checkup) {
  log::init({"", world.rank(), checkup.is_root(), ""});
  const auto owner = world.group().broadcast(process_name());
  if (checkup.is_root() && !line.print_config)
    fmt::print("millrace {} preflight, {} {}\n\n  {:<13} {:<9} {}\n", MILLRACE_VERSION, world.size(),
               world.size() == 1 ? "rank" : "ranks", "check", "result", "detail");
  std::optional<preflight::ScratchFolder> scratch;
  std::optional<Watchdog> watchdog;
  if (world.size() > 1)
    watchdog.emplace(world, silent_seconds,
                     [&](const Suspect& suspect) { leave(checkup.hang(suspect.what), scratch ? &*scratch : nullptr); });
  const auto loaded = preflight::check_program(checkup, line);
  if (line.print_config) return 0;
  scratch.emplace(loaded.root.run.dir.value, owner);
  try {
    run_checks(world, line, loaded.root, checkup, *scratch);
    checkup.finish();
  } catch (const AgreedError&) {
    throw;
  } catch (...) {
    const Error error = present_error();
    if (error.exit() != Exit::timeout) throw;
    leave(error, &*scratch);
  }
  if (checkup.is_root())
    fmt::print("\nall is well, after {:.0f} s: the same arguments with `millrace train` start the run\n",
               checkup.seconds());
  return 0;
}

int run_preflight(const CommandLine& line) {
  std::optional<preflight::TimeLimit> joining(
      std::in_place, join_seconds,
      fmt::format("{} has waited {:.0f} s for the other ranks to start", this_process(), join_seconds));
  return run_ranks([&](World& world) {
    preflight::Checkup checkup(world);
    joining.reset();
    return check_allocation(world, line, checkup);
  });
}

}  // namespace

Command preflight_command() {
  return {"preflight",
          "tries what a run needs on the ranks it will have: clocks, GPUs, folders, data, network, a step",
          "[--config FILE]... and the settings of `millrace train`, under the same mpirun or srun",
          {},
          false,
          run_preflight,
          schema_of<TrainConfig>,
          /*heeds_signals=*/true,
          /*on_ranks=*/true};
}

}  // namespace millrace
