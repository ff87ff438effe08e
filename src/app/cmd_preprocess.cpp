// preprocess: every row of data.train once, through the encoders into the latent cache.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "command.h"
#include "config.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"
#include "millrace/nn/device.h"
#include "producer_parts.h"
#include "run_folder.h"
#include "session.h"

namespace millrace {
namespace {

struct PreprocessPlan {
  const PreprocessConfig& config;
  PipelineFolder pipeline;
  DataPlan data;  // as many stripes as there are ranks, or fewer
  EncodingPlan encoding;
};

PreprocessPlan plan_preprocess(const Session& session, const PreprocessConfig& config) {
  const auto& world = session.world.group();
  PreprocessPlan plan{config, open_pipeline(world, config.model.pipeline.value), {}, {}};
  auto data = config.data;
  data.stripes = {};
  plan.data = share_data_plan(world, data.train, data, world.size());
  plan.encoding = share_encoding_plan(world, config, plan.pipeline, plan.data.manifest,
                                      parse_dtype(config.encode.dtype, session.device));
  return plan;
}

// One rank's share: its stripe's rows in order, those that the cache lacks encoded and written.
class Worker {
 public:
  Worker(const PreprocessPlan& plan, ProducerParts& parts, std::vector<std::uint32_t> stripes,
         const StreamOptions& options)
      : plan_(plan),
        parts_(parts),
        stream_(parts.start_stream(options, CachedValues::leave, stripes)),
        stripes_(std::move(stripes)),
        samples_(stream_, stripes_, ParcelSize{}, 2 * parts.encoder().batch_size()),
        done_(stripes_.empty()),
        writer_(*plan.encoding.cache, plan.data.manifest, plan.config.encode.rows_per_file, /*most_open=*/1) {}

  bool done() const { return done_; }

  // Reads on until one batch of samples is encoded, or all is read.
  void work() {
    while (static_cast<int>(fresh_.size()) < parts_.encoder().batch_size() && !done()) take_sample();
    write_batch();
  }

  void publish() { writer_.publish(); }
  LedgerDelta take_news() { return std::exchange(news_, {}); }
  std::int64_t encoded() const { return parts_.encoder().images(); }
  std::string filter_report() const { return stream_.filter_report(); }

 private:
  // What happened to a row that is not in the cache yet, in reading order; without a reason it is the next of `fresh_`.
  struct Event {
    std::uint32_t archive;
    std::uint64_t row;
    std::optional<Reason> reason;
  };

  void take_sample() {
    auto sample = samples_.next();
    for (const auto stripe : stripes_) note_rejected(stream_.take_ledger_delta(stripe));
    done_ = !sample;
    if (done_) return;
    const auto& ref = sample->ref;
    if (!sample->encoding) {
      events_.push_back({ref.archive, ref.row, std::nullopt});
      fresh_.push_back(std::move(*sample));
    } else if (sample->encoding->values == Encoding::Values::left_not_finite) {
      news_.add_non_finite(ref.archive, ref.hash);
    }
  }

  void note_rejected(const LedgerDelta& news) {
    for (const auto& [archive, row, reason] : fresh_rejections(news, plan_.data.stripes))
      events_.push_back({archive, row, reason});
    news_.append(news);
  }

  void write_batch() {
    EncodedBatch batch;
    std::vector<bool> finite(fresh_.size(), false);
    if (!fresh_.empty()) {
      batch = parts_.encoder().encode(fresh_);
      for (const int row : finite_rows(batch)) finite[row] = true;
    }
    std::size_t next = 0;
    for (const Event& event : events_) {
      if (event.reason) {
        writer_.reject(event.archive, event.row, *event.reason);
        continue;
      }
      const auto& sample = fresh_[next];
      writer_.add(sample, batch, static_cast<std::int64_t>(next), finite[next]);
      if (!finite[next]) {
        log::warning("{}: its encoding is not finite; the sample will be left out", sample.ref.id);
        parts_.rejected().add({sample.ref, Reason::non_finite, "its encoding is not finite"});
        news_.add_non_finite(event.archive, sample.ref.hash);
      }
      ++next;
    }
    fresh_.clear();
    events_.clear();
  }

  const PreprocessPlan& plan_;
  ProducerParts& parts_;
  StripeStream& stream_;
  const std::vector<std::uint32_t> stripes_;  // one, or none
  TurnReader samples_;
  bool done_;
  CacheWriter writer_;
  std::vector<TransformedSample> fresh_;
  std::vector<Event> events_;
  LedgerDelta news_;
};

// Rank 0's account; the other ranks only send their news.
class Account {
 public:
  Account(const Session& session, const PreprocessPlan& plan)
      : group_(session.world.group()), plan_(plan), ledger_(plan.data) {}

  const Ledger& ledger() const { return ledger_; }

  // Collective: brings together what the ranks did since the last call, and judges the data. `filters`: what there is
  // to be said of this rank's.
  void share(LedgerDelta news, std::int64_t encoded_here, bool ended = false, const std::string& filters = {}) {
    encoded_ = encoded_here;
    group_.all_reduce_sum(std::span(&encoded_, 1));
    const auto parts = group_.gather_strings(news.to_bytes());
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
  const Stopwatch since_start_;
  Stopwatch since_line_;
  std::int64_t encoded_ = 0;
  std::int64_t lines_ = 0;
};

// The archives as a training run on the images would see them, so that its stripes come out the same.
CacheManifest finished_manifest(Manifest manifest, const Ledger& ledger) {
  if (manifest.archives.size() < max_stripes) count_rows(manifest);
  CacheManifest finished;
  for (std::size_t i = 0; i < manifest.archives.size(); ++i) {
    const auto& counts = ledger.archives()[i];
    const bool broken = counts.rejected[static_cast<int>(Reason::archive_error)] > 0;
    finished.entries.push_back({manifest.archives[i], counts.rows(), broken});
  }
  return finished;
}

void open_folder(const Session& session, const PreprocessPlan& plan) {
  const std::filesystem::path dir = plan.config.run.dir.value;
  on_root(session.world.group(), [&] {
    std::error_code code;
    std::filesystem::create_directories(dir / "log", code);
    if (code) fail(Exit::io, "run.dir: cannot make {}: {}", dir.string(), code.message());
  });
  open_log(session, dir, "", session.is_root());
}

void print_start(const Session& session, const PreprocessPlan& plan) {
  auto row = [](const char* name, const std::string& text) { log::info("  {:<12} {}", name, text); };
  log::info("millrace {} preprocess", MILLRACE_VERSION);
  row("ranks",
      fmt::format("{}, on {}, {} threads each", session.world.size(), device_name(session.device), session.threads));
  row("pipeline", fmt::format("{}, encoders in {}", plan.config.model.pipeline.value,
                              dtype_name(parse_dtype(plan.config.encode.dtype, session.device))));
  row("data", fmt::format("{} archives in {} units for {} ranks", plan.data.manifest.archives.size(),
                          plan.data.stripes.units.size(), plan.data.stripes.stripes));
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

// Rounds of about a second: every rank encodes at least one batch, then all tell what they did. True when all is done,
// false when a signal to any rank asks to stop.
bool run_rounds(const Group& group, Worker& worker, Account& account) {
  constexpr double round_seconds = 1;
  while (true) {
    const Stopwatch watch;
    do {
      worker.work();
    } while (!worker.done() && !stop::requested() && watch.seconds() < round_seconds);
    std::int64_t state[] = {worker.done() ? 0 : 1, stop::signal_number()};
    group.all_reduce_max(std::span<std::int64_t>(state));
    account.share(worker.take_news(), worker.encoded());
    account.print_progress();
    if (state[0] == 0) return true;
    if (state[1] != 0) return false;
  }
}

// Loads, then opens the run folder, then encodes: weights that are missing or broken must not touch the folder.
int preprocess(const Session& session, const PreprocessPlan& plan) {
  const auto& group = session.world.group();
  std::optional<ProducerParts> loaded;
  on_all(group, [&] { loaded.emplace(plan.config, plan.pipeline, plan.data, plan.encoding, session); });
  auto& parts = *loaded;
  if (told_to_stop(group)) return stopped_before_start(session);
  open_folder(session, plan);
  if (session.is_root()) print_start(session, plan);
  on_root(group, [&] { parts.make_null_text(); });  // begins the cache

  std::vector<std::uint32_t> stripes;
  const auto own = static_cast<std::uint32_t>(session.world.rank());
  if (own < plan.data.stripes.stripes) stripes.push_back(own);
  StreamOptions options;
  options.threads = plan.config.data.threads.value_or(session.threads);
  options.epochs = 1;
  Worker worker(plan, parts, stripes, options);
  Account account(session, plan);
  const bool finished = run_rounds(group, worker, account);
  worker.publish();
  account.share(worker.take_news(), worker.encoded(), finished, worker.filter_report());
  if (session.is_root()) {
    account.write_ledger();
    if (finished) write_cache_manifest(*plan.encoding.cache, finished_manifest(plan.data.manifest, account.ledger()));
    account.write_state(finished ? "done" : "requeue");
    log::progress("");
    fmt::print("\n{}: {}\n  cache           {}\n  next            {}\n", finished ? "done" : "stopped",
               account.describe(), plan.encoding.cache->string(),
               finished ? fmt::format("millrace train data.train.type=latents data.train.path={} ... ",
                                      plan.encoding.cache->string())
                        : "the same command again: it goes on where it stopped");
    std::fflush(stdout);
  }
  return static_cast<int>(finished ? Exit::done : Exit::requeue);
}

int run_preprocess(const CommandLine& line) {
  return run_ranks([&](World& world) {
    const auto loaded =
        load_config<PreprocessConfig>(world, line, [](const auto& c, auto& report) { check(c, report); });
    if (loaded.printed) return 0;
    const auto session = start_session(world, loaded.root.run.device, loaded.root.guard.hang_timeout);
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
