// preflight: what a long run will need, tried on the ranks it will have, in a minute or two.
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "command.h"
#include "launch/run_ranks.h"
#include "launch/session.h"
#include "millrace/comm/agree.h"
#include "millrace/comm/watchdog.h"
#include "millrace/core/leave.h"
#include "millrace/core/log.h"
#include "output.h"
#include "preflight/checks.h"
#include "run/resume.h"

namespace millrace {
namespace preflight {
namespace {

constexpr double usual_join_seconds = 300;
constexpr double silent_seconds = 20;   // of a rank that is stopped
constexpr double leaving_seconds = 20;  // run.dir may be what hangs
constexpr double retry_seconds = 5;     // a run is patient with its storage, a check is not

// The end when a rank hangs: nobody waits for it, and nothing stays in run.dir. The first thread that comes has the
// word, and only on a rank that `speaks`; the end of that one ends all.
[[noreturn]] void leave(bool speaks, const std::function<Error()>& last_words, ScratchFolder& scratch) {
  static std::atomic<bool> leaving = false;
  leave_within(leaving_seconds, Exit::suspect_node, "this rank waits for one that hangs");
  while (leaving.exchange(true) || !speaks) ::pause();
  const auto error = last_words();
  print_error(error);
  scratch.remove();
  ::_exit(static_cast<int>(error.exit()));
}

void run_checks(World& world, const CommandLine& line, Checkup& checkup, ScratchFolder& scratch) {
  auto [config, report, printed] = check_program(checkup, line);
  if (line.print_config) return;
  config.data.retry_for.count = std::min(config.data.retry_for.count, retry_seconds);
  Session session{world, torch::kCPU, 1};
  TrainPlan plan{.config = config};
  check_clocks(checkup);
  check_machines(checkup, session, plan);
  check_model_folder(checkup, plan);
  const auto of_role = check_plan(checkup, session, plan, report);
  if (config.checkpoint.resume == "auto")
    on_root(world.group(), [&] {
      if (list_checkpoints(config.run.dir.value).empty()) refuse_lost_checkpoints(config.run.dir.value);
    });
  if (!line.dry_run) {
    check_folder(checkup, "run folder", "run.dir", config.run.dir.value, scratch);
    if (config.encode.cache) check_folder(checkup, "latent cache", "encode.cache", *config.encode.cache, scratch);
    check_data(checkup, plan);
    check_messages(checkup, plan.roles);
    check_gradients(checkup, session, plan, of_role);
    const auto encoder = check_encoders(checkup, session, plan);
    check_space(checkup, config, check_step(checkup, session, plan, of_role));
  }
  checkup.finish();
  if (!checkup.is_root()) return;
  const auto& resume = config.checkpoint.resume;
  const bool resumes = resume != "never" && (resume != "auto" || !list_checkpoints(config.run.dir.value).empty());
  say("\nall is well, after {:.0f} s: the same arguments with `millrace train` start the run{}\n", checkup.seconds(),
      resumes ? "; the checkpoint that it goes on from was not tried, which `train --dry-run` does" : "");
}

int check_allocation(World& world, const CommandLine& line, Deadline& deadline) {
  Checkup checkup(world, world.hosts(), deadline);
  log::init({"", world.rank(), checkup.is_root(), ""});
  if (checkup.is_root() && !line.print_config)
    say("millrace {} preflight, {} {}\n\n  {:<13} {:<9} {}\n", MILLRACE_VERSION, world.size(),
        world.size() == 1 ? "rank" : "ranks", "check", "result", "detail");
  ScratchFolder scratch;
  std::optional<Watchdog> watchdog;
  if (world.size() > 1)
    watchdog.emplace(world, silent_seconds, [&](const Suspect& suspect) {
      const int lowest_alive = suspect.rank == 0 ? 1 : 0;
      leave(
          world.rank() == lowest_alive, [&] { return checkup.hang(suspect.what); }, scratch);
    });
  try {
    run_checks(world, line, checkup, scratch);
  } catch (const AgreedError&) {
    throw;
  } catch (...) {
    const Error error = present_error();
    if (error.exit() != Exit::suspect_node) throw;
    leave(
        true, [&] { return error; }, scratch);
  }
  deadline.move(leaving_seconds, checkup.name(world.rank()) + " waits for the others to end");
  return 0;
}

int run_preflight(const CommandLine& line) {
  const double seconds = join_seconds(usual_join_seconds);
  Deadline deadline(seconds,
                    fmt::format("{} has waited {:.0f} s for the other ranks to start", this_process(), seconds));
  return run_ranks([&](World& world) { return check_allocation(world, line, deadline); });
}

}  // namespace
}  // namespace preflight

Command preflight_command() {
  return {.name = "preflight",
          .summary = "tries what a run needs on the ranks it will have: clocks, GPUs, folders, data, network, a step",
          .usage = "[--config FILE]... and the settings of `millrace train`, under the same mpirun or srun",
          .run = preflight ::run_preflight,
          .schema = schema_of<TrainConfig>,
          .heeds_signals = true,
          .prints = true,
          .on_ranks = true};
}

}  // namespace millrace
