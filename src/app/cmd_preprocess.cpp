// preprocess: every row of data.train once, through the encoders into the latent cache.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "app_config.h"
#include "command.h"
#include "millrace/checkpoint/run_lease.h"
#include "millrace/core/deadline.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"
#include "millrace/latents/cached_source.h"
#include "millrace/loader/data_plan.h"
#include "millrace/nn/device.h"
#include "millrace/produce/encode_pipeline.h"
#include "run/finish.h"
#include "run/session.h"

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

// One rank's part of the rows: its stripe's in order, those that the cache lacks encoded and written. A producer whose
// encodings end in files: nothing is replaced, every row is kept.
class Worker {
 public:
  Worker(const PreprocessPlan& plan, EncodePipeline& pipeline, std::vector<std::uint32_t> stripes,
         const StreamOptions& options)
      : plan_(plan),
        rejected_(pipeline.rejected()),
        stream_(pipeline.start_stream(options, CachedValues::keys_only, stripes)),
        encoder_(pipeline.make_encoder(CacheUse::whole, stripes.size())),
        stripes_(std::move(stripes)),
        samples_(stream_, stripes_, ParcelSize{}, 2 * encoder_.batch_size()),
        done_(stripes_.empty()) {}

  bool done() const { return done_; }

  // Reads on until there is one batch of samples, all is read, or `seconds` have passed (the filters may drop
  // everything), and encodes what there is.
  void work(double seconds) {
    const Stopwatch watch;
    std::vector<TransformedSample> samples;
    try {
      while (static_cast<int>(samples.size()) < encoder_.batch_size() && !done_) {
        const bool ready = stream_.wait(stripes_.front(), seconds - watch.seconds());
        if (!ready) break;
        if (auto sample = next_missing()) samples.push_back(std::move(*sample));
      }
    } catch (const ReadingStopped&) {  // the round ends by the signal
    }
    account();
    if (!samples.empty()) encode(std::move(samples));
    encoder_.reject(std::exchange(rejections_, {}));
  }

  void publish() { encoder_.finish(); }
  LedgerDelta take_delta() { return std::exchange(delta_, {}); }
  std::int64_t encoded() const { return encoder_.images(); }
  std::string filter_report() const { return stream_.filter_report(); }

 private:
  // The next sample, unless the cache has it.
  std::optional<TransformedSample> next_missing() {
    auto sample = samples_.next();
    account();
    done_ = !sample;
    if (done_ || !sample->encoding) return sample;
    if (sample->encoding->values == Encoding::Values::left_not_finite)
      delta_.add_non_finite(sample->ref.archive, sample->ref.hash);
    return std::nullopt;
  }

  // Of the rows that were read, before anything else is said of them.
  void account() {
    for (const auto stripe : stripes_) {
      const auto delta = stream_.take_ledger_delta(stripe);
      for (const auto& row : fresh_rejections(delta, plan_.data.stripes)) rejections_.push_back(row);
      delta_.append(delta);
    }
  }

  void encode(std::vector<TransformedSample> samples) {
    const auto [batch, finite] = encoder_.encode(std::move(samples));
    for (std::size_t row = 0; row < finite.size(); ++row) {
      if (finite[row]) continue;
      const auto& ref = batch.refs[row];
      log::warning("{}: its encoding is not finite; the sample will be left out", ref.id);
      rejected_.add({ref, RejectReason::non_finite, "its encoding is not finite"});
      delta_.add_non_finite(ref.archive, ref.hash);
    }
  }

  const PreprocessPlan& plan_;
  RejectedList& rejected_;
  StripeStream stream_;
  CachedEncoder encoder_;
  const std::vector<std::uint32_t> stripes_;  // one, or none
  InterleavedReader samples_;
  bool done_;
  std::vector<RejectedRow> rejections_;  // that the cache is not told yet
  LedgerDelta delta_;
};

// What all ranks together have done, counted by rank 0; the others only send their deltas.
class PreprocessProgress {
 public:
  PreprocessProgress(const Session& session, const PreprocessPlan& plan)
      : group_(session.world.group()), plan_(plan), ledger_(plan.data) {}

  const Ledger& ledger() const { return ledger_; }

  // Collective: brings together what the ranks did since the last call, and judges the data. `filters`: what there is
  // to be said of this rank's.
  void reduce(LedgerDelta delta, std::int64_t encoded_here, bool ended = false, const std::string& filters = {}) {
    encoded_ = encoded_here;
    group_.all_reduce_sum(std::span(&encoded_, 1));
    const auto parts = group_.gather_strings(delta.to_bytes());
    const auto reports = group_.gather_strings(filters);
    on_root(group_, [&] {
      for (const auto& part : parts) ledger_.merge(LedgerDelta::from_bytes(part));
      if (encoded_ > 0) remove_done();
      if (ended) write_ledger();
      try {
        check_bad_share(ledger_, plan_.data, plan_.config.data.max_bad_share, ended);
      } catch (const Error& error) {
        write_ledger();
        const auto report =
            std::find_if(reports.begin(), reports.end(), [](const auto& text) { return !text.empty(); });
        if (report == reports.end() || ledger_.total().accepted > 0) throw;
        throw Error(error.exit(), fmt::format("{}\n{}", error.what(), *report), error.hint());
      }
    });
  }

  void print_progress() {
    if (group_.rank() != 0) return;
    const auto text = describe();
    if (log::on_terminal()) {
      log::progress(text);
    } else if (++lines_ <= 3 || since_line_.seconds() >= 10) {
      log::info("{}", text);
      since_line_ = Stopwatch();
    }
  }

  std::string describe() const {
    const auto& total = ledger_.total();
    const double seconds = since_start_.seconds();
    return fmt::format("rows {} accepted {} rejected {} | encoded {} {:.1f} img/s | elapsed {}", total.rows(),
                       total.accepted, total.rejected_rows(), encoded_, encoded_ / std::max(seconds, 1e-9),
                       format_time(seconds));
  }

  // What DONE said of the cache holds until there is something new in it.
  void remove_done() const {
    std::error_code ignored;
    std::filesystem::remove(std::filesystem::path(plan_.config.run.dir.value) / "DONE", ignored);
  }

  void write_ledger() const {
    write_file_atomically(std::filesystem::path(plan_.config.run.dir.value) / "ledger.json", ledger_.report_json());
  }

  void write_state(const char* word) const {
    const auto& total = ledger_.total();
    const nlohmann::ordered_json state = {{"state", word},
                                          {"cache", plan_.encoding.cache->string()},
                                          {"rows", total.rows()},
                                          {"accepted", total.accepted}};
    const std::filesystem::path dir = plan_.config.run.dir.value;
    write_file_atomically(dir / "STATE", state.dump(2) + "\n");
    if (std::string_view(word) == "done") write_file_atomically(dir / "DONE", state.dump(2) + "\n");
  }

 private:
  const Group& group_;
  const PreprocessPlan& plan_;
  Ledger ledger_;
  const Stopwatch since_start_{};
  Stopwatch since_line_;
  std::int64_t encoded_ = 0;
  std::int64_t lines_ = 0;
};

// The archives as a training run on the images would see them, so that its stripes come out the same.
CacheManifest finished_manifest(Manifest manifest, const Ledger& ledger) {
  if (manifest.archives.size() < max_stripes) count_rows(manifest, max_stripes);
  CacheManifest finished;
  for (std::size_t i = 0; i < manifest.archives.size(); ++i) {
    const auto& counts = ledger.archives()[i];
    const bool broken = counts.rejected[static_cast<int>(RejectReason::archive_error)] > 0;
    finished.entries.push_back({manifest.archives[i], counts.rows(), broken});
  }
  return finished;
}

// STATE, DONE and ledger.json are of the same names as a training run's.
RunLease open_folder(const Session& session, const PreprocessPlan& plan) {
  const std::filesystem::path dir = plan.config.run.dir.value;
  on_root(session.world.group(), [&] {
    std::error_code code;
    if (std::filesystem::exists(dir / "metrics.jsonl", code))
      throw Error(Exit::usage, fmt::format("run.dir: {} is the folder of a training run", dir.string()),
                  "give preprocess a folder of its own: what it writes there would be taken for the training's");
    std::filesystem::create_directories(dir / "log", code);
    if (code) fail(Exit::io, "run.dir: cannot make {}: {}", dir.string(), code.message());
  });
  auto lease = RunLease::acquire(session.world.group(), dir);
  open_log(session, dir, "", session.is_root());
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
  auto row = [](const char* name, const std::string& text) { log::info("  {:<12} {}", name, text); };
  log::info("millrace {} preprocess", MILLRACE_VERSION);
  row("ranks",
      fmt::format("{}, on {}, {} threads each", session.world.size(), device_name(session.device), session.threads));
  row("pipeline", fmt::format("{}, encoders in {}", plan.config.model.pipeline.value,
                              dtype_name(parse_dtype(plan.config.encode.dtype, session.device))));
  row("data", fmt::format("{} archives in {} splits for {} ranks", plan.data.manifest.archives.size(),
                          plan.data.stripes.splits.size(), plan.data.stripes.stripes));
  warn_of_idle_ranks(session.world.size(), plan.data);
  row("encodings", describe(plan.encoding));
  row("run", plan.config.run.dir.value);
}

int say_what_would_be(const Session& session, const PreprocessPlan& plan) {
  if (!session.is_root()) return 0;
  print_start(session, plan);
  const auto& cache = *plan.encoding.cache;
  print_dry_run(plan.config.run.dir.value, is_latent_cache(cache)
                                               ? fmt::format("encode what {} lacks", cache.string())
                                               : fmt::format("make {} and encode all rows into it", cache.string()));
  return 0;
}

// Rounds of about a second, a batch longer at most: every rank encodes what comes, then all tell what they did. True
// when all is done, false when a signal to any rank asks to stop.
bool run_rounds(const Group& group, Worker& worker, PreprocessProgress& progress) {
  constexpr double round_seconds = 1;
  while (true) {
    const Stopwatch watch;
    do {
      worker.work(round_seconds);
    } while (!worker.done() && !stop::requested() && watch.seconds() < round_seconds);
    std::int64_t state[] = {worker.done() ? 0 : 1, stop::signal_number()};
    group.all_reduce_max(std::span<std::int64_t>(state));
    progress.reduce(worker.take_delta(), worker.encoded());
    progress.print_progress();
    if (state[0] == 0) return true;
    if (state[1] != 0) return false;
  }
}

// Loads, then opens the run folder, then encodes: weights that are missing or broken must not touch the folder.
int preprocess(const Session& session, const PreprocessPlan& plan) {
  const auto& group = session.world.group();
  std::optional<EncodePipeline> pipeline;
  on_all(group, [&] {
    pipeline.emplace(plan.config, plan.pipeline, plan.data, plan.encoding, session.device, session.world.rank());
  });
  if (told_to_stop(group)) return stopped_before_start(session);
  const auto lease = open_folder(session, plan);
  if (session.is_root()) print_start(session, plan);
  on_root(group, [&] { pipeline->begin_cache(pipeline->null_text()); });

  std::vector<std::uint32_t> stripes;
  const auto own = static_cast<std::uint32_t>(session.world.rank());
  if (own < plan.data.stripes.stripes) stripes.push_back(own);
  StreamOptions options;
  options.threads = plan.config.data.threads.value_or(session.threads);
  options.epochs = 1;
  Worker worker(plan, *pipeline, stripes, options);
  PreprocessProgress progress(session, plan);
  const bool finished = run_rounds(group, worker, progress);
  worker.publish();
  progress.reduce(worker.take_delta(), worker.encoded(), finished, worker.filter_report());
  if (session.is_root()) {
    progress.write_ledger();
    if (finished) write_cache_manifest(*plan.encoding.cache, finished_manifest(plan.data.manifest, progress.ledger()));
    progress.write_state(finished ? "done" : "requeue");
    log::progress("");
    fmt::print("\n{}: {}\n  cache           {}\n  next            {}\n", finished ? "done" : "stopped",
               progress.describe(), plan.encoding.cache->string(),
               finished ? fmt::format("millrace train data.train.type=latents data.train.path={} ... ",
                                      plan.encoding.cache->string())
                        : "the same command again: it resumes where it stopped");
    std::fflush(stdout);
  }
  if (finished) return static_cast<int>(Exit::done);
  leave_within(15, Exit::requeue, "stopped, with all in place; a thread still waits for what it reads");
  return static_cast<int>(Exit::requeue);
}

int run_preprocess(const CommandLine& line) {
  return run_ranks([&](World& world) {
    const auto loaded =
        load_config<PreprocessConfig>(world, line, [](const auto& c, auto& report) { check(c, report); });
    if (loaded.printed) return 0;
    const auto session =
        start_session(world, loaded.root.run.device, loaded.root.guard.hang_timeout, loaded.root.threads);
    const PreprocessPlan plan = plan_preprocess(session, loaded.root);
    return line.dry_run ? say_what_would_be(session, plan) : preprocess(session, plan);
  });
}

}  // namespace

Command preprocess_command() {
  return {"preprocess",
          "encode data sets into a latent cache, alone or under mpirun/srun",
          "[--config FILE]... run.dir=DIR model.pipeline=DIR data.train.path=ARCHIVES encode.cache=DIR [key=value]...",
          {},
          false,
          run_preprocess,
          schema_of<PreprocessConfig>,
          /*heeds_signals=*/true,
          /*on_ranks=*/true};
}

}  // namespace millrace
