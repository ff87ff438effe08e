#include "run/finish.h"

#include <cstdlib>

#include "millrace/comm/agree.h"
#include "millrace/core/leave.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/core/text.h"
#include "millrace/core/units.h"
#include "millrace/train/balance.h"
#include "millrace/train/state_file.h"
#include "output.h"

namespace millrace {
namespace {

// What helpers that start a run again with checkpoint.resume=auto were given (slurm/outcome.sh), and people type again.
std::string typed_resume(const std::string& resume) {
  const char* typed = std::getenv("MILLRACE_TYPED_RESUME");
  return typed ? typed : resume;
}

std::string next_of(const std::filesystem::path& run_dir, const LoopResult& result, const std::string& resume,
                    const std::function<std::string()>& when_finished) {
  if (result.finished && !result.is_saved)
    return "nothing was saved (checkpoint.every=null): there is nothing to export";
  if (result.finished) return when_finished();
  const bool wants_a_cure = result.failure && result.failure->exit() == Exit::bad_data;
  const std::string first = wants_a_cure ? "mend what the error tells, then the same command" : "the same command";
  // A path, or never, would go back there. Another run's, which this one goes on from, is none of its own.
  const bool has_own =
      result.checkpoint && *result.checkpoint != resume && is_checkpoint_of(run_dir, *result.checkpoint);
  const std::string again = first + (resume != "auto" && has_own ? " with checkpoint.resume=auto" : " again");
  if (result.is_saved || result.bad) return again + ": it resumes from the checkpoint";
  if (result.state.step == 0) return again + ": no step was taken";
  return "nothing was saved (checkpoint.every=null): " + first + " begins where this one did";
}

void print_figures(const LoopResult& result) {
  const auto& t = result.totals;
  say("  loss            {:.4f}   (mean of the last interval; gradient norm {:.3f})\n", t.loss, t.grad_norm);
  say("  trainers        {:.1f} img/s, {:.0f} ms a step, of which {:.1f}% waiting for samples\n", t.images_per_second,
      t.step_ms, 100 * t.wait_share());
  if (result.roles.producers > 0) {
    say("  producers       {:.1f} img/s while encoding, {:.1f}% of their time waiting for trainers\n",
        t.encode_images_per_second, 100 * t.stages.send_wait);
    say("  their stages    {}\n", describe(t.stages));
    say("  balance         {}\n", describe(balance_of(t), result.roles));
  }
}

void print_footer(const std::filesystem::path& run_dir, const LoopResult& result, const std::string& resume,
                  const std::function<std::string()>& next_command) {
  const auto& t = result.totals;
  say("\n{} after step {} ({} samples, {} in training){}\n", result.finished ? "done" : "stopped", t.step,
      format_count(static_cast<double>(t.samples)), format_time(t.elapsed_seconds),
      result.reason.empty() || result.failure ? "" : ": " + result.reason);  // the error itself follows
  if (t.step_ms > 0) print_figures(result);                                  // else this start has trained no step
  if (t.skipped > 0)
    say("  skipped         {} updates whose numbers were not finite or out of the ordinary\n", t.skipped);
  if (result.is_saved) say("  checkpoint      {}\n", *result.checkpoint);
  say("  run             {}   (as a page: millrace report {})\n", run_dir.string(), shell_word(run_dir.string()));
  say("  next            {}\n", next_of(run_dir, result, typed_resume(resume), next_command));
}

// Who aborts first would end rank 0 in the middle of writing STATE.
void let_rank_0_write(const Group& trainers) {
  try {
    trainers.set_time_limit(30);
    trainers.barrier();
  } catch (const Error&) {  // the failure is told, not this
  }
}

}  // namespace

int finish_run(const Group& trainers, const std::filesystem::path& run_dir, const RunLease& lease,
               const LoopResult& result, const std::string& resume, const std::function<std::string()>& next_command) {
  log::set_step(0);
  const Exit exit = result.failure ? result.failure->exit() : result.finished ? Exit::done : Exit::requeue;
  if (trainers.is_root()) {
    const auto status = result.finished  ? RunStatus::done
                        : result.failure ? status_after(*result.failure)
                                         : RunStatus::requeue;
    // DONE must not lead to a checkpoint of an earlier step.
    const auto checkpoint = result.finished && !result.is_saved ? std::nullopt : result.checkpoint;
    StateFile(run_dir, &lease).write(status, result.state.point(), checkpoint, exit, result.reason);
    print_footer(run_dir, result, resume, next_command);
  }
  if (result.failure) {
    leave_within(60, result.failure->exit(), result.failure->what());  // a producer's thread may hang in a read
    let_rank_0_write(trainers);
    throw AgreedError(*result.failure, trainers);
  }
  return static_cast<int>(exit);
}

void print_dry_run(const std::filesystem::path& run_dir, const std::string& would) {
  std::error_code ignored;
  say("\ndry run: nothing was written\n");
  say("  a run would     {}\n", would);
  say("  run             {}\n",
      std::filesystem::exists(run_dir, ignored) ? run_dir.string() : run_dir.string() + ", which would be made");
  say("  next            the same command without --dry-run\n");
}

}  // namespace millrace
