#include "run/run_folder.h"

#include <fmt/ranges.h>
#include <algorithm>

#include "millrace/comm/fault.h"
#include "millrace/comm/watchdog.h"
#include "millrace/core/deadline.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/process_name.h"
#include "millrace/core/stacks.h"
#include "millrace/loader/data_plan.h"
#include "millrace/train/state_file.h"

namespace millrace {

// Keys a restart may not change without saying so.
static const std::vector<std::string> fixed_keys = {
    "run.seed",     "objective.prediction", "batch.global", "data.train", "data.images",
    "data.stripes", "data.shuffle_block",   "transform",    "tokenizer"};

constexpr const char* archives_name = "archives.tsv";

std::optional<std::string> path_of(const std::optional<CheckpointReader>& checkpoint) {
  if (!checkpoint) return std::nullopt;
  return checkpoint->path().string();
}

// The owner before may have written one after this start had chosen where to begin.
static void refuse_newer_checkpoint(const std::filesystem::path& run_dir, std::int64_t start) {
  for (const auto& newer : list_checkpoints(run_dir)) {
    if (newer.step <= start) return;
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

// What killed processes were writing (AtomicFile); this one's thread may be renewing LEASE.
static void remove_half_written_files(const std::filesystem::path& run_dir) {
  std::error_code error;
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir, error)) {
    const auto extension = entry.path().extension().string();
    if (extension.starts_with(".tmp-") && extension != ".tmp-" + process_name()) leftovers.push_back(entry.path());
  }
  for (const auto& path : leftovers) std::filesystem::remove(path, error);
}

RunLease open_run_folder(const Group& world, const std::filesystem::path& run_dir, const std::string& config_yaml,
                         const Manifest& archives, const RunState& start, const std::string& resume,
                         const std::optional<CheckpointReader>& checkpoint) {
  on_root(world, [&] {
    std::error_code code;
    std::filesystem::create_directories(run_dir / "checkpoints", code);
    if (!code) std::filesystem::create_directories(run_dir / "log", code);
    if (code) fail(Exit::io, "run.dir: cannot make {}: {}", run_dir.string(), code.message());
  });
  auto lease = RunLease::acquire(world, run_dir);
  on_root(world, [&] {
    if (resume == "auto") refuse_newer_checkpoint(run_dir, start.step);
    remove_half_written_files(run_dir);
    std::error_code ignored;
    std::filesystem::remove_all(run_dir / "fault", ignored);
    write_file_atomically(run_dir / "config.yaml", config_yaml);
    write_file_atomically(run_dir / archives_name, archives.listing());
    StateFile(run_dir).write("running", start.point(), path_of(checkpoint));
  });
  return lease;
}

// No stack is unwound and no MPI is called: the thread that could do so may be the one that hangs.
static void end_hanging_run(const std::filesystem::path& run_dir, const RunLease& lease, const Suspect& suspect) {
  const Error error(Exit::timeout,
                    fmt::format("{}; stacks of the ranks that could write them: {}", suspect.what,
                                (run_dir / "log" / "stacks-rank-*.txt").string()),
                    "the same command continues from the last checkpoint; leave that host out if it hangs again. "
                    "guard.hang_timeout is the longest that a rank may stand still in a step");
  const auto why = fmt::format("{}\n  hint: {}", error.what(), error.hint());
  leave_within(30, Exit::timeout, why);  // run.dir may be what hangs
  if (lease.is_ours()) {
    fault::write_about({run_dir, suspect.rank, suspect.host, ""}, error, suspect.phase.c_str());
    StateFile(run_dir).write_failed(error);
  }
  leave_within(0, Exit::timeout, why);
}

int run_in_folder(const Session& session, const std::filesystem::path& run_dir, const RunLease& lease,
                  const std::string& role, double hang_seconds, const std::function<int()>& part) {
  const auto& world = session.world;
  fault::report_to({run_dir, world.rank(), world.host(), role});
  stacks::write_to(run_dir / "log" / fmt::format("stacks-rank-{:05d}.txt", world.rank()),
                   fmt::format("rank {} on {}", world.rank(), world.host()));
  std::optional<Watchdog> watchdog;
  if (world.size() > 1)
    watchdog.emplace(world, hang_seconds, [&](const Suspect& suspect) { end_hanging_run(run_dir, lease, suspect); });
  try {
    return part();
  } catch (...) {
    if (fault::leaving()) StateFile(run_dir, &lease).write_failed(present_error());
    throw;
  }
}

int finish_run(const Group& trainers, const std::filesystem::path& run_dir, const RunLease& lease,
               const LoopResult& result, bool has_producers, const std::string& next_command) {
  log::set_step(0);
  if (trainers.rank() == 0) {
    const char* const state = result.finished ? "done" : result.failure ? state_after(*result.failure) : "requeue";
    StateFile(run_dir, &lease).write(state, result.state.point(), result.checkpoint, result.reason);
    print_footer(run_dir, result, has_producers, next_command);
  }
  if (result.failure) {
    leave_within(60, result.failure->exit(), result.failure->what());  // a producer's thread may hang in a read
    throw AgreedError(*result.failure, trainers);
  }
  return static_cast<int>(result.finished ? Exit::done : Exit::requeue);
}

std::optional<CheckpointReader> find_start(const Group& world, const std::filesystem::path& run_dir,
                                           const std::string& resume) {
  if (resume == "auto") return find_checkpoint(run_dir, world);
  if (resume != "never") return CheckpointReader::open(resume, world);
  on_root(world, [&] {
    const auto there = list_checkpoints(run_dir);
    if (there.empty()) return;
    throw Error(Exit::usage,
                fmt::format("checkpoint.resume=never, but {} holds {} checkpoints", run_dir.string(), there.size()),
                "choose another run.dir, or checkpoint.resume=auto");
  });
  return std::nullopt;
}

nlohmann::json run_identity(const std::string& kind, const std::string& config_yaml, const DataPlan& data,
                            const nlohmann::json& model, const std::filesystem::path& pipeline) {
  return {{"kind", kind},
          {"config", config_yaml},
          {"data",
           {{"manifest", data.manifest.digest().hex()},
            {"archives", data.manifest.archives.size()},
            {"stripes", data.stripes.stripes}}},
          {"model", model},
          {"pipeline", std::filesystem::absolute(pipeline).string()}};
}

// What made another digest of the data than `before`, in words.
static std::vector<std::string> data_changes(const CheckpointReader& checkpoint, const std::string& before,
                                             const Manifest& archives) {
  const auto file = checkpoint.path().parent_path().parent_path() / archives_name;
  try {
    const auto listing = read_file(file);
    if (hash128(listing).hex() == before) return listing_changes(listing, archives.listing());
  } catch (const Error&) {
  }
  return {fmt::format("which archives differ cannot be told without the {} of that run", archives_name)};
}

void check_resume(const CheckpointReader& checkpoint, const std::vector<config::Change>& changes,
                  const nlohmann::json& identity, const Manifest& archives, bool allow_changes) {
  std::vector<std::string> refused;
  for (const auto& change : changes) {
    const auto text = fmt::format("{}: {} -> {}", change.key, change.before, change.after);
    const bool is_fixed = std::any_of(fixed_keys.begin(), fixed_keys.end(), [&](const std::string& key) {
      return change.key == key || change.key.starts_with(key + ".");
    });
    if (is_fixed) refused.push_back(text);
    log::info("changed since the checkpoint: {}", text);
  }
  for (const char* key : {"data", "model"}) {
    const auto before = checkpoint.manifest().value(key, nlohmann::json()),
               after = identity.value(key, nlohmann::json());
    if (before == after) continue;
    refused.push_back(fmt::format("{}: {} -> {}", key, before.dump(), after.dump()));
    const auto digest = before.is_object() ? before.value("manifest", "") : "";
    if (digest.empty() || digest == archives.digest().hex()) continue;
    for (auto& change : data_changes(checkpoint, digest, archives)) refused.push_back("data: " + change);
  }
  if (refused.empty()) return;
  if (!allow_changes)
    throw Error(
        Exit::usage,
        fmt::format("{} was written by another setup:\n  {}", checkpoint.path().string(), fmt::join(refused, "\n  ")),
        "set these back, choose another run.dir, or say checkpoint.allow_changes=true");
  for (const auto& text : refused) log::warning("continuing although this changed: {}", text);
}

RunState start_from(const CheckpointReader& checkpoint, const nlohmann::json& identity) {
  RunState state = checkpoint.state();
  if (checkpoint.manifest().value("data", nlohmann::json()) != identity.value("data", nlohmann::json())) {
    log::warning("the data are not those of the checkpoint: they are read from their beginning, and counted anew");
    state.cursors.clear();
  }
  return state;
}

RunState with_ledger(RunState start, const std::optional<CheckpointReader>& checkpoint, const Group& trainers) {
  if (checkpoint && !start.cursors.empty()) on_root(trainers, [&] { start.ledger = checkpoint->ledger(); });
  return start;
}

std::uint64_t checkpoint_bytes(const torch::nn::Module& model, bool ema) {
  std::int64_t elements = 0;
  for (const auto& parameter : model.parameters()) elements += parameter.numel();
  return sizeof(float) * static_cast<std::uint64_t>(elements) * (ema ? 4 : 3);
}

void check_disk_space(const std::filesystem::path& run_dir, std::uint64_t checkpoint_bytes, int keep) {
  auto folder = std::filesystem::absolute(run_dir);
  std::error_code error;
  while (!std::filesystem::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  const auto free = std::filesystem::space(folder, error).available;
  if (error) return;  // what cannot be asked is found out when something is written
  if (free < checkpoint_bytes)
    throw Error(Exit::io,
                fmt::format("run.dir: {} are free on the disk of {}, a checkpoint takes {}", format_bytes(free),
                            folder.string(), format_bytes(checkpoint_bytes)),
                "make room, choose another run.dir, or say checkpoint.every=null");
  const auto there = static_cast<int>(list_checkpoints(run_dir).size());
  const auto more = static_cast<std::uint64_t>(std::max(1, keep + 1 - there));
  if (free < more * checkpoint_bytes)
    log::warning("run.dir: {} are free on the disk of {}; {} more checkpoints of {} would not fit (checkpoint.keep={})",
                 format_bytes(free), folder.string(), more, format_bytes(checkpoint_bytes), keep);
}

void print_dry_run(const std::filesystem::path& run_dir, const std::string& would) {
  std::error_code ignored;
  fmt::print("\ndry run: nothing was written\n");
  fmt::print("  a run would     {}\n", would);
  fmt::print("  run             {}\n",
             std::filesystem::exists(run_dir, ignored) ? run_dir.string() : run_dir.string() + ", which would be made");
  fmt::print("  next            the same command without --dry-run\n");
  std::fflush(stdout);
}

// Who holds the run back, from the shares of time (percent) that trainers and producers spent waiting for each other.
static std::string balance(double trainers_wait, const StageShares& stages, double images_per_second) {
  if (trainers_wait <= 5) return "producers keep up with the trainers";
  if (100 * stages.send_wait > trainers_wait)
    return "both waited for each other: do they share cores, or is the network slow?";
  return fmt::format("trainers wait for producers: they could take {:.1f} img/s; {} holds the producers back",
                     images_per_second / std::max(0.01, 1 - trainers_wait / 100), limiting_stage(stages));
}

static std::string next_of(const LoopResult& result, const std::string& when_finished) {
  if (result.finished) return when_finished;
  if (result.checkpoint) return "the same command again: it resumes from the checkpoint";
  return "nothing was saved (checkpoint.every=null): the same command begins where this one did";
}

void print_footer(const std::filesystem::path& run_dir, const LoopResult& result, bool has_producers,
                  const std::string& next_command) {
  const auto& t = result.totals;
  const double wait = t.step_ms > 0 ? 100 * t.data_wait_ms / t.step_ms : 0;
  fmt::print("\n{} after step {} ({} samples, {} in training)\n", result.finished ? "done" : "stopped", t.step,
             format_count(static_cast<double>(t.samples)), format_time(t.elapsed_seconds));
  fmt::print("  loss            {:.4f}   (mean of the last interval; gradient norm {:.3f})\n", t.loss, t.grad_norm);
  fmt::print("  trainers        {:.1f} img/s, {:.0f} ms a step, of which {:.1f}% waiting for samples\n",
             t.images_per_second, t.step_ms, wait);
  if (has_producers) {
    fmt::print("  producers       {:.1f} img/s while encoding, {:.1f}% of their time waiting for trainers\n",
               t.encode_images_per_second, 100 * t.stages.send_wait);
    fmt::print("  their stages    {}\n", describe(t.stages));
    fmt::print("  balance         {}\n", balance(wait, t.stages, t.images_per_second));
  }
  if (t.skipped > 0) fmt::print("  skipped         {} updates whose numbers were not finite\n", t.skipped);
  if (result.checkpoint) fmt::print("  checkpoint      {}\n", *result.checkpoint);
  fmt::print("  run             {}\n", run_dir.string());
  fmt::print("  next            {}\n", next_of(result, next_command));
  std::fflush(stdout);
}

}  // namespace millrace
