#include "run/run_folder.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "millrace/checkpoint/line_files.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/checkpoint/retention.h"
#include "millrace/comm/agree.h"
#include "millrace/comm/fault.h"
#include "millrace/core/abandoned.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/process_name.h"
#include "millrace/core/run_files.h"
#include "millrace/core/storage_error.h"
#include "millrace/core/units.h"
#include "millrace/train/state_file.h"
#include "run/run_history.h"

namespace millrace {

// The owner before may have written one after this start had chosen where to begin, when the newest was `newest_there`:
// what was passed over then may be whole to rank 0, and would be in each start.
static void refuse_newer_checkpoint(const std::filesystem::path& run_dir, std::int64_t newest_there) {
  for (const auto& newer : list_checkpoints(run_dir)) {
    if (newer.step <= newest_there) return;
    try {
      CheckpointReader::open(newer.path);
    } catch (const UnreadableCheckpoint&) {
      throw;
    } catch (const Error&) {
      continue;  // passed over, as before
    }
    throw Error(Exit::requeue, fmt::format("{} has appeared while this start was made ready", newer.path.string()),
                "start again: it continues from there");
  }
}

// Files that nobody else writes than who has the lease.
static bool is_the_owners(const std::filesystem::path& name) {
  static const std::set<std::string> names = {
      run_file::config,     run_file::environment, run_file::base_config, run_file::archives, run_file::state,
      run_file::next_state, run_file::done,        run_file::lease,       run_file::ledger,   run_file::rollback};
  return names.contains(name.string()) || step_of_lines_beyond(name);
}

// What killed processes were writing (AtomicFile); this one's thread may be renewing LEASE, and evaluate and report
// write beside a run.
static void remove_half_written_files(const std::filesystem::path& run_dir) {
  std::error_code error, ignored;
  for (const auto& entry : list_folder(run_dir, error)) {
    const auto writer = writer_of_temporary(entry.path());
    if (!writer || *writer == process_name()) continue;
    if (is_the_owners(entry.path().stem()) || is_abandoned(entry)) std::filesystem::remove(entry.path(), ignored);
  }
}

// Its owner was killed, could not delete a checkpoint, or has left word of how it ended.
static bool has_remains(const std::filesystem::path& run_dir) {
  std::error_code error;
  return std::filesystem::exists(run_dir / run_file::lease, error) ||
         std::filesystem::exists(run_dir / run_file::fault, error) || leftover_bytes(run_dir) > 0;
}

static void make_folder(const std::filesystem::path& folder) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (!code) return;
  errno = code.value();
  fail_errno("run.dir: cannot make", folder);
}

RunLease claim_run_folder(const Group& world, const std::filesystem::path& run_dir) {
  on_root(world, [&] { make_folder(run_dir / run_file::log); });
  return RunLease::acquire(world, run_dir);
}

RunLease open_run_folder(const Group& world, const std::filesystem::path& run_dir, const RunDescription& description,
                         const Manifest& archives, const Start& start, const std::string& resume) {
  auto lease = claim_run_folder(world, run_dir);
  on_root(world, [&] {
    make_folder(checkpoints_in(run_dir));
    if (resume == "auto") refuse_newer_checkpoint(run_dir, std::max(start.state.step, start.newest_there));
    remove_half_written_files(run_dir);
    if (add_start(run_dir, description, start)) fault::remove_earlier(run_dir);
    write_file_atomically(run_dir / run_file::config, description.config);
    write_file_atomically(run_dir / run_file::environment, description.environment);
    std::error_code ignored;
    if (description.base.empty())
      std::filesystem::remove(run_dir / run_file::base_config, ignored);
    else
      write_file_atomically(run_dir / run_file::base_config, description.base);
    write_file_atomically(run_dir / run_file::archives, archives.listing());
    StateFile(run_dir).write(RunStatus::running, start.state.point(), start.path());
  });
  return lease;
}

void refuse_end_of_another_run(const Group& world, const std::filesystem::path& run_dir, const Start& start,
                               const Duration& duration) {
  on_root(world, [&] {
    const auto& checkpoint = start.checkpoint->path();
    if (is_checkpoint_of(run_dir, checkpoint)) return;
    throw Error(Exit::usage,
                fmt::format("checkpoint.resume: {} has reached step {}, and duration is {}: nothing to train in {}",
                            checkpoint.string(), start.state.step, to_string(duration), run_dir.string()),
                "set a longer duration");
  });
}

void finish_without_training(const Group& world, const std::filesystem::path& run_dir, const Start& start,
                             const Duration& duration) {
  std::optional<RunLease> lease;
  if (broadcast_from_root(world, [&] { return has_remains(run_dir); }))
    lease.emplace(RunLease::acquire(world, run_dir));
  on_root(world, [&] {
    if (lease) {
      remove_leftover_checkpoints(checkpoints_in(run_dir));
      remove_half_written_files(run_dir);
      if (add_start(run_dir, {}, start)) fault::remove_earlier(run_dir);
    }
    log::info("{} has reached step {}, and duration is {}: nothing to train", start.checkpoint->path().string(),
              start.state.step, to_string(duration));
    StateFile(run_dir).write(RunStatus::done, start.state.point(), start.path(), Exit::done);
  });
}

}  // namespace millrace
