#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>

#include "life.h"
#include "millrace/core/stopwatch.h"
#include "pipeline.h"
#include "process.h"
#include "run_folder.h"

namespace millrace::storm {
namespace {

using Words = std::vector<std::string>;

void append(Words& words, Words more) {
  words.insert(words.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

const char* text_of(bool value) {
  return value ? "true" : "false";
}

// What decides samples and encodings; the same in all commands of a case.
Words data_words(const Site& site, const Layout& layout) {
  const Case& c = site.drawn;
  Words words = {"run.device=cpu",
                 "model.pipeline=" + site.workshop.pipeline.string(),
                 "data.train.path=" + site.archives().string(),
                 fmt::format("data.train.type={}", c.data.archives == Archives::parquet ? "parquet" : "webdataset"),
                 "data.max_bad_share=1",
                 fmt::format("transform.resolution={}", pipeline_resolution),
                 fmt::format("encode.batch_size={}", layout.encode_batch)};
  if (c.data.filtered) words.push_back("data.train.filters.score=<0.7");
  if (c.augmented) append(words, {"transform.flip=0.5", "transform.crop=random"});
  return words;
}

// The same on a cache that needs no images.
Words latent_words(const Site& site, const Layout& layout) {
  return {"run.device=cpu",
          "model.pipeline=" + site.workshop.pipeline.string(),
          "data.train.path=" + site.cache().string(),
          "data.train.type=latents",
          "data.max_bad_share=1",
          fmt::format("transform.resolution={}", pipeline_resolution),
          fmt::format("encode.batch_size={}", layout.encode_batch)};
}

Command train_command(const Site& site, const fs::path& run, const Life& life, bool from_images) {
  const Case& c = site.drawn;
  const Layout& layout = life.layout;
  Command command = life.mpirun ? mpirun(layout.ranks) : Command{};
  auto& words = command.words;
  append(words, {site.workshop.millrace.string(), "train", "run.dir=" + run.string()});
  const bool latents = c.encodings == Encodings::latents && !from_images;
  append(words, latents ? latent_words(site, layout) : data_words(site, layout));
  if (!latents && !from_images && c.encodings != Encodings::online)
    append(words, {"encode.cache=" + site.cache().string(), fmt::format("encode.rows_per_file={}", c.rows_per_file)});
  if (layout.producers) words.push_back(fmt::format("roles.producers={}", layout.producers));
  words.push_back(fmt::format("data.threads={}", layout.threads));
  if (c.stripes) words.push_back(fmt::format("data.stripes={}", *c.stripes));
  words.push_back(site.workshop.shuffle_block ? fmt::format("data.shuffle_block={}", c.block)
                                              : fmt::format("data.shuffle_buffer={}", c.block * c.stripe_count()));
  append(words,
         {fmt::format("batch.global={}", c.batch), fmt::format("batch.micro={}", layout.micro),
          fmt::format("duration={} steps", life.end == Life::End::stop ? life.step : c.steps),
          fmt::format("run.seed={}", c.seed), "optim.lr=1e-3", "optim.warmup=5 steps",
          fmt::format("ema.enabled={}", text_of(c.ema)),
          fmt::format("parallel.strategy={}", layout.ddp ? "ddp" : "shard_grad_op"),
          fmt::format("model.gradient_checkpointing={}", text_of(layout.recompute)), "log.ids=true",
          "log.every=1 steps", "log.tensorboard=false", fmt::format("checkpoint.every={} steps", life.save_every),
          fmt::format("checkpoint.keep={}", life.keep)});
  return command;
}

ino_t inode_of(const fs::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

std::string last_lines(const fs::path& path, std::size_t count) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back("      " + line.substr(0, 300) + "\n");
  std::string text;
  for (std::size_t i = lines.size() - std::min(count, lines.size()); i < lines.size(); ++i) text += lines[i];
  return text;
}

// The end of what the program said; a hang is told with the state of its processes and their logs.
std::string what_it_said(const Site& site, const fs::path& run, const fs::path& output, const Ending& ending) {
  std::string text;
  if (ending.timed_out) {
    text +=
        fmt::format("\n    no end after {} s; last step {}\n", site.workshop.limit, last_step(run)) + ending.picture;
    for (int rank = 0;; ++rank) {
      const auto log = run / "log" / fmt::format("rank-{:05d}.log", rank);
      if (!fs::exists(log)) break;
      text += fmt::format("    log of rank {}:\n{}", rank, last_lines(log, 2));
    }
  }
  return text + fmt::format("\n    {} ends with:\n{}", output.string(), last_lines(output, 12));
}

// Sends the life's signal when its time has come. What an earlier life has written says nothing about this one, which
// goes on with its file, or replaces it where lines have to go.
class Trigger {
 public:
  Trigger(const Life& life, const fs::path& run)
      : life_(life), run_(run), inode_(inode_of(run / "metrics.jsonl")), step_before_(last_step(run)) {}

  void operator()(Job& job) {
    if (fired_ || life_.signal == 0) return;
    const bool is_due = due();
    if (target_ == 0 && (is_due || seen() > 0)) {  // looked up before it is needed: that takes as long as some steps
      const auto ranks = job.ranks();
      if (const auto found = ranks.find(life_.rank); found != ranks.end()) target_ = found->second;
    }
    fired_ = is_due && job.owns(target_) && ::kill(target_, life_.signal) == 0;
  }

  bool fired() const { return fired_; }

  // The newest step that this life wrote.
  int seen() const {
    const auto inode = inode_of(run_ / "metrics.jsonl");
    const int step = inode != 0 ? last_step(run_) : 0;
    return inode != inode_ || step > step_before_ ? step : 0;
  }

 private:
  bool due() const {
    if (life_.end == Life::End::kill_at_time) return since_start_.seconds() >= life_.seconds;
    return seen() >= life_.step;
  }

  const Life& life_;
  const fs::path run_;
  const ino_t inode_;
  const int step_before_;
  const Stopwatch since_start_;
  pid_t target_ = 0;
  bool fired_ = false;
};

struct Ended {
  Ending ending;
  bool fired = false;
  int seen = 0;  // the newest step that this life wrote
  fs::path output;
};

Ended run_job(Site& site, const Command& command, const std::string& name, const fs::path& run, const Life& life) {
  const auto temporary = site.folder / "tmp";
  fs::create_directories(temporary);
  Ended ended;
  ended.output = site.folder / (name + ".out");
  auto line = command.text();
  if (life.signal)
    line +=
        fmt::format("   # {} to rank {} {}",
                    life.signal == SIGKILL   ? "KILL"
                    : life.signal == SIGTERM ? "TERM"
                                             : "USR1",
                    life.rank,
                    life.end == Life::End::kill_at_time ? fmt::format("after {:.2f} s", life.seconds)
                                                        : fmt::format("once step {} is in metrics.jsonl", life.step));
  site.transcript.push_back(line);
  Trigger trigger(life, run);
  Job job(command, ended.output, temporary);
  ended.ending = job.wait(site.workshop.limit, [&](Job& running) { trigger(running); });
  ended.fired = trigger.fired();
  site.signals.drawn += life.signal != 0;
  site.signals.sent += ended.fired;
  ended.seen = trigger.seen();
  return ended;
}

// What holds after every end.
Troubles check_end(const Site& site, const fs::path& run, const Life& life, const Ended& ended) {
  Troubles troubles;
  const auto& ending = ended.ending;
  const bool killed = ended.fired && life.signal == SIGKILL;
  const bool may_ask_again = ended.fired && life.end == Life::End::signal;
  const bool right_code =
      !ending.timed_out && (killed || ending.exit_code == 0 || (may_ask_again && ending.exit_code == 75));
  if (!right_code)
    troubles.push_back((ending.timed_out ? "hangs" : fmt::format("exit {}", ending.exit_code)) +
                       what_it_said(site, run, ended.output, ending));
  for (const auto& survivor : ending.survivors) troubles.push_back("left behind: " + survivor);
  return troubles;
}

// Orderly ends lose no step. A kill finds one save on its way at most: that of step `seen` may not have begun, the one
// before may be unfinished. `first` = the newest checkpoint before.
Troubles check_saves(const fs::path& run, const Life& life, const Ended& ended, int first) {
  const int saved = last_checkpoint(run);
  if (ended.fired && life.signal == SIGKILL) {
    const int least = std::max(first, ((ended.seen - 1) / life.save_every - 1) * life.save_every);
    if (saved >= least) return {};
    return {fmt::format("killed after step {}, saved every {} steps, but the newest checkpoint is that of step {}",
                        ended.seen, life.save_every, saved)};
  }
  std::ifstream in(run / "STATE");
  const auto state = nlohmann::json::parse(in, nullptr, false);
  if (!state.is_object()) return {"no STATE"};
  Troubles troubles;
  if (state.value("step", -1) != saved)
    troubles.push_back(
        fmt::format("STATE names step {}, the newest checkpoint is that of step {}", state.value("step", -1), saved));
  if (const auto done = ended.ending.exit_code == 0 ? "done" : "requeue"; state.value("state", "") != done)
    troubles.push_back(fmt::format("STATE says {} after exit {}", state.value("state", ""), ended.ending.exit_code));
  return troubles;
}

Command preprocess_command(const Site& site, std::optional<int> limit) {
  const Case& c = site.drawn;
  Command command = mpirun(c.cache_ranks);
  append(command.words,
         {site.workshop.millrace.string(), "preprocess", "run.dir=" + (site.folder / "filling").string()});
  append(command.words, data_words(site, c.lives[0].layout));
  append(command.words,
         {"encode.cache=" + site.cache().string(), fmt::format("encode.rows_per_file={}", c.rows_per_file)});
  if (limit) command.words.push_back(fmt::format("data.train.limit={}", *limit));
  return command;
}

}  // namespace

Troubles prepare_cache(Site& site) {
  const Case& c = site.drawn;
  if (c.encodings == Encodings::online || c.encodings == Encodings::write_through) return {};
  const auto run = site.folder / "filling";
  Life whole;
  if (c.kill_preprocess) {
    Dice dice(c.seed ^ 0xABCDEF);
    Life killed;
    killed.end = Life::End::kill_at_time;
    killed.seconds = 0.3 + dice.share();
    killed.rank = dice.below(c.cache_ranks);
    killed.signal = SIGKILL;
    const auto ended = run_job(site, preprocess_command(site, {}), "filling-killed", run, killed);
    if (auto troubles = check_end(site, run, killed, ended); !troubles.empty()) return troubles;
    if (c.encodings == Encodings::killed_cache) return {};
  }
  std::optional<int> limit;
  if (c.encodings == Encodings::half_cache) limit = c.total_rows() / 2;
  const auto ended = run_job(site, preprocess_command(site, limit), "filling", run, whole);
  return check_end(site, run, whole, ended);
}

Troubles live(Site& site, const std::string& name, const Life& life, bool from_images) {
  const auto run = site.folder / name;
  const int first = last_checkpoint(run);
  const auto ended = run_job(site, train_command(site, run, life, from_images), name, run, life);
  auto troubles = check_end(site, run, life, ended);
  if (!troubles.empty()) return troubles;
  return check_saves(run, life, ended, first);
}

}  // namespace millrace::storm
