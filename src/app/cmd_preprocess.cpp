// preprocess: every row of data.train once, through the encoders into the latent cache.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "app_config.h"
#include "command.h"
#include "launch/broadcast_plan.h"
#include "launch/run_ranks.h"
#include "launch/run_watch.h"
#include "launch/session.h"
#include "millrace/checkpoint/run_lease.h"
#include "millrace/comm/agree.h"
#include "millrace/comm/fault.h"
#include "millrace/comm/meanwhile.h"
#include "millrace/core/files.h"
#include "millrace/core/leave.h"
#include "millrace/core/log.h"
#include "millrace/core/phase.h"
#include "millrace/core/run_files.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"
#include "millrace/core/text.h"
#include "millrace/dataset/storage_retry.h"
#include "millrace/latents/cache_manifest.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/loader/data_plan.h"
#include "millrace/nn/device.h"
#include "millrace/produce/cache_filler.h"
#include "millrace/produce/cache_size.h"
#include "millrace/produce/encode_pipeline.h"
#include "millrace/produce/filling_progress.h"
#include "millrace/train/state_file.h"
#include "output.h"
#include "run/finish.h"
#include "run/run_folder.h"
#include "train/start_table.h"

namespace millrace {
namespace {

struct PreprocessPlan {
  const PreprocessConfig& config;
  PipelineFolder pipeline;
  DataPlan data = {};  // as many stripes as there are ranks, or fewer
  EncodingPlan encoding = {};
};

PreprocessPlan plan_preprocess(const Session& session, const PreprocessConfig& config) {
  const auto& world = session.world.group();
  PreprocessPlan plan{.config = config, .pipeline = open_pipeline(world, config.model.pipeline.value)};
  plan.data = broadcast_shares(world, config.data.train, config.data);
  plan.encoding = broadcast_encoding_plan(world, config, plan.pipeline, plan.data.manifest,
                                          parse_dtype(config.encode.dtype, session.device));
  return plan;
}

// The archives as a training run on the images would see them, so that its stripes come out the same.
CacheManifest finished_manifest(Manifest manifest, const Ledger& ledger) {
  for (auto& archive : manifest.archives)  // counted as far as this job's splits needed it
    if (archive.seekable && !archive.limit) archive.rows.reset();
  if (manifest.archives.size() < max_stripes) count_rows(manifest, max_stripes);
  CacheManifest finished;
  for (std::size_t i = 0; i < manifest.archives.size(); ++i) {
    const auto& counts = ledger.archives()[i];
    const bool broken = counts.rejected[static_cast<int>(RejectReason::archive_error)] > 0;
    finished.entries.push_back({manifest.archives[i], counts.rows(), broken});
  }
  return finished;
}

// Reads that fail now and then do not end a job of days.
void list_in_cache(const PreprocessPlan& plan, const Ledger& ledger) {
  const auto& cache = *plan.encoding.cache;
  StorageRetry retry(StorageRetry::Seconds(plan.config.data.retry_for.count));
  const auto finished = retry.run([&] { return finished_manifest(plan.data.manifest, ledger); });
  const auto others = retry.run([&] { return add_to_cache_manifest(cache, finished); });
  if (!others.empty())
    log::warning(
        "{} lists {} archives of earlier runs as well, {} the first, which data.train.type=latents reads, too; where "
        "they are not among the data any more, remove that file and run this once more",
        (cache / "MANIFEST.json").string(), others.size(), others.front());
}

// STATE, and DONE when all is in the cache. `total`: of this run so far.
void write_state(const PreprocessPlan& plan, RunStatus status, const RowCounts& total, std::optional<Exit> exit) {
  StateFile(plan.config.run.dir.value)
      .write_facts(status,
                   {{"cache", plan.encoding.cache->string()}, {"rows", total.rows()}, {"accepted", total.accepted}},
                   exit);
}

// "encoder of stripe 3"; there may be fewer of them than ranks.
std::string describe_share(int rank, const PreprocessPlan& plan) {
  const auto share = static_cast<std::uint32_t>(rank);
  return share < plan.data.stripes.stripes ? fmt::format("encoder of stripe {}", share) : "encoder of nothing";
}

RunLease open_folder(const Session& session, const PreprocessPlan& plan) {
  const auto& world = session.world.group();
  const std::filesystem::path dir = plan.config.run.dir.value;
  on_root(world, [&] {
    std::error_code unknown;
    if (std::filesystem::exists(dir / run_file::metrics, unknown))
      throw Error(Exit::usage, fmt::format("run.dir: {} is the folder of a training run", dir.string()),
                  "give preprocess a folder of its own: what it writes there would be taken for the training's");
  });
  auto lease = claim_run_folder(world, dir);
  on_root(world, [&] {
    fault::remove_earlier(dir);
    write_file_atomically(dir / run_file::config, config::dump_yaml_for_others(plan.config));
    write_state(plan, RunStatus::running, {}, {});
  });
  return lease;
}

void warn_of_idle_ranks(int ranks, const DataPlan& data) {
  const auto idle = ranks - static_cast<int>(data.stripes.stripes);
  if (idle == 0) return;
  const auto& archives = data.manifest.archives;
  const auto whole = std::ranges::count_if(archives, [](const Archive& archive) { return !archive.seekable; });
  log::warning("{} of {} ranks have nothing to do: {} archives feed no more{}", idle, ranks, archives.size(),
               whole ? fmt::format(" ({} of them, pipes, addresses or compressed files, cannot be split)", whole)
                     : std::string(" (they have no more rows)"));
}

void print_start(const Session& session, const PreprocessPlan& plan) {
  log::info("millrace {} preprocess", MILLRACE_VERSION);
  print_start_row("ranks", fmt::format("{}, on {}, {} threads each", session.world.size(), device_name(session.device),
                                       session.threads));
  print_start_row("pipeline", fmt::format("{}, encoders in {}", plan.config.model.pipeline.value,
                                          dtype_name(parse_dtype(plan.config.encode.dtype, session.device))));
  print_start_row("data", fmt::format("{} archives in {} splits for {} ranks", plan.data.manifest.archives.size(),
                                      plan.data.stripes.splits.size(), plan.data.stripes.stripes));
  warn_of_idle_ranks(session.world.size(), plan.data);
  print_start_row("encodings", describe(plan.encoding));
  print_start_row("cache", describe(plan_cache_size(plan.encoding, plan.config.data.train, plan.data.manifest)));
  print_start_row("run", plan.config.run.dir.value);
}

int dry_run(const Session& session, const PreprocessPlan& plan) {
  if (!session.is_root()) return 0;
  print_start(session, plan);
  const auto& cache = *plan.encoding.cache;
  print_dry_run(plan.config.run.dir.value, is_latent_cache(cache)
                                               ? fmt::format("encode what {} lacks", cache.string())
                                               : fmt::format("make {} and encode all rows into it", cache.string()));
  return 0;
}

// Rounds, a batch longer at most: every rank encodes what comes, then all tell what they did. True when all is done,
// false when a signal to any rank asks to stop. Whoever publishes a file, or reads slowly, lets the others wait: a
// round takes about ten times as long as they waited in the last one.
bool run_rounds(const Group& group, CacheFiller& filler, FillingProgress& progress) {
  constexpr double shortest = 1, longest = 10;
  bool is_published = false;
  const auto heed_stop = [&] {
    if (!stop::requested() || std::exchange(is_published, true)) return;
    const char* const awaited = phase::awaited.exchange(nullptr);  // meanwhile this rank is the one that works
    filler.publish();
    phase::awaited = awaited;
  };
  const Meanwhile publish_soon(heed_stop);  // the job may end before the slowest rank is heard of
  double round_seconds = shortest, waited = 0;
  while (true) {
    const Stopwatch watch;
    while (!filler.done() && !stop::requested() && watch.seconds() < round_seconds)
      filler.work(round_seconds - watch.seconds());
    heed_stop();
    const Stopwatch since_ready;
    std::int64_t state[] = {filler.done() ? 0 : 1, stop::signal_number(), static_cast<std::int64_t>(1000 * waited)};
    group.all_reduce_max(std::span<std::int64_t>(state));
    waited = filler.done() ? 0 : since_ready.seconds();  // who has nothing left may wait
    round_seconds = std::clamp(10 * state[2] / 1000.0, shortest, longest);
    progress.reduce(filler.take_delta(), filler.encoded());
    progress.print();
    if (state[0] == 0) return true;
    if (state[1] != 0) return false;
  }
}

int fill_cache(const Session& session, const PreprocessPlan& plan, EncodePipeline& pipeline, const RunLease& lease) {
  const auto& group = session.world.group();
  open_log(session, plan.config.run.dir.value, "", session.is_root(), describe_share(session.world.rank(), plan));
  phase::current = phase::filling;
  if (session.is_root()) print_start(session, plan);
  if (session.world.local_rank() == 0) clear_leftovers(plan.encoding);
  on_root(group, [&] { begin_cache(plan.encoding, pipeline.null_text()); });

  std::vector<std::uint32_t> stripes;
  const auto own = static_cast<std::uint32_t>(session.world.rank());
  if (own < plan.data.stripes.stripes) stripes.push_back(own);
  StreamOptions options;
  options.threads = plan.config.data.threads.value_or(session.threads);
  options.epochs = 1;
  CacheFiller filler(pipeline, plan.data, stripes, options);
  FillingProgress progress(group, plan.data, plan.config.data.max_bad_share, plan.config.run.dir.value, lease);
  const bool finished = run_rounds(group, filler, progress);
  filler.publish();
  progress.reduce(filler.take_delta(), filler.encoded(), finished, filler.filter_report());
  phase::current = phase::ending;
  const bool is_taken_over = group.any(session.is_root() && !lease.is_ours());  // its new owner tells the end
  if (session.is_root() && !is_taken_over) {
    progress.write_ledger();
    if (finished) list_in_cache(plan, progress.ledger());
    write_state(plan, finished ? RunStatus::done : RunStatus::requeue, progress.ledger().total(),
                finished ? Exit::done : Exit::requeue);
    log::progress("");
    say("\n{}: {}\n  cache           {}\n  next            {}\n", finished ? "done" : "stopped", progress.describe(),
        plan.encoding.cache->string(),
        finished ? fmt::format("millrace train data.train.type=latents data.train.path={} ... ",
                               shell_word(plan.encoding.cache->string()))
                 : "the same command again: it resumes where it stopped");
  }
  if (finished && !is_taken_over) return static_cast<int>(Exit::done);
  group.barrier();  // behind what rank 0 writes
  leave_within(15, Exit::requeue, "stopped, with all in place; a thread still waits for what it reads");
  return static_cast<int>(Exit::requeue);
}

// Loads, then opens the run folder, then encodes: weights that are missing or broken must not touch the folder.
int preprocess(const Session& session, const PreprocessPlan& plan, RunWatch& watch) {
  const auto& group = session.world.group();
  std::optional<EncodePipeline> pipeline;
  const auto encoders = load_encoders(group, plan.config, plan.pipeline, plan.encoding, session.device);
  on_all(group, [&] {
    pipeline.emplace(plan.config, plan.pipeline, plan.data, plan.encoding, session.device, session.world.rank(),
                     encoders);
  });
  if (told_to_stop(group)) return stopped_before_start(session);
  const auto lease = open_folder(session, plan);
  return run_in_folder(
      session, plan.config.run.dir.value, lease, [](int) { return "encoder"; }, watch,
      [&] { return fill_cache(session, plan, *pipeline, lease); });
}

int run_preprocess(const CommandLine& line) {
  return run_ranks([&](World& world) {
    const auto loaded =
        load_config<PreprocessConfig>(world, line, [](const auto& c, auto& report) { check(c, report); });
    if (loaded.printed) return 0;
    const auto& c = loaded.root;
    if (!line.dry_run) report_faults_to(world, c.run.dir.value);
    const auto session = start_session(world, c.run.device, c.guard, c.threads);
    RunWatch watch(world, c.guard.hang_seconds());
    phase::current = phase::loading;
    const PreprocessPlan plan = plan_preprocess(session, c);
    return line.dry_run ? dry_run(session, plan) : preprocess(session, plan, watch);
  });
}

}  // namespace

Command preprocess_command() {
  return {
      .name = "preprocess",
      .summary = "encode data sets into a latent cache, alone or under mpirun/srun",
      .usage =
          "[--config FILE]... run.dir=DIR model.pipeline=DIR data.train.path=ARCHIVES encode.cache=DIR [key=value]...",
      .run = run_preprocess,
      .schema = schema_of<PreprocessConfig>,
      .heeds_signals = true,
      .on_ranks = true};
}

}  // namespace millrace
