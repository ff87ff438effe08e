#include "evaluate/checkpoint_watch.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "millrace/core/files.h"
#include "millrace/core/hash.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"

namespace millrace {

std::string digest_of(const std::vector<CheckpointFile>& files) {
  std::string digests;
  for (const auto& file : files) digests += file.name + " " + file.digest + "\n";
  return hash128(digests).hex();
}

CheckpointWatch::CheckpointWatch(const Session& session, std::filesystem::path run, double patience_seconds,
                                 IsScored is_scored, double look_every_seconds)
    : session_(session),
      run_(std::move(run)),
      patience_seconds_(patience_seconds),
      look_every_seconds_(look_every_seconds),
      is_scored_(std::move(is_scored)) {}

// Checkpoints come, are taken anew and go by being renamed, which changes the time of their folder. Until it changes
// none is opened: a hundred are kept, and looked at for weeks.
std::optional<std::filesystem::path> CheckpointWatch::oldest_unscored() {
  auto names = list_checkpoints(run_);
  std::error_code unknown;
  const auto changed = fs::last_write_time(checkpoints_in(run_), unknown);  // behind the list, which may lack the last
  if (!unknown && changed == judged_) return std::nullopt;
  std::ranges::sort(names, {}, &CheckpointName::step);
  for (const auto& name : names) {
    const auto& path = name.path;
    if (passed_.contains(path)) continue;
    try {
      auto digest = CheckpointManifest::read_digest(path);
      if (const auto known = scored_.find(path); known != scored_.end() && known->second == digest) continue;
      if (!is_scored_(name, CheckpointManifest::parse(CheckpointManifest::read(path), path))) return path;
      scored_[path] = std::move(digest);
    } catch (const Error&) {
      if (fs::exists(path)) return path;  // whoever opens it says what is wrong
    }
  }
  // Two changes may come so close together that they have one time; none is as old as the look before.
  if (!unknown && changed == seen_) judged_ = changed;
  seen_ = changed;
  return std::nullopt;
}

// By STATE. `done` only with DONE, which an earlier end has left until the first checkpoint of a start that goes on.
std::optional<RunStatus> CheckpointWatch::run_status() const {
  std::error_code ignored;
  const bool has_done = fs::exists(run_ / run_file::done, ignored);
  if (!fs::exists(run_ / run_file::state, ignored)) return has_done ? std::optional(RunStatus::done) : std::nullopt;
  const auto json = nlohmann::json::parse(read_file(run_ / run_file::state), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("state") || !json["state"].is_string()) return std::nullopt;
  const auto status = try_parse_run_status(json["state"].get<std::string>());
  return status == RunStatus::done && !has_done ? std::nullopt : status;
}

void CheckpointWatch::check_patience(double waited, std::optional<RunStatus> status) const {
  if (status == RunStatus::failed && waited > patience_seconds_ / 100)
    throw Error(Exit::usage,
                fmt::format("{} has failed; its checkpoints are scored as far as they can be", run_.string()),
                "its STATE says why; start the run again, and then this command: it goes on");
  if (waited > patience_seconds_)
    throw Error(Exit::usage, fmt::format("{} has made no new checkpoint for {}", run_.string(), format_time(waited)),
                "evaluate.patience says how long --follow waits");
}

static void sleep_unless_stopped(double seconds) {
  const Stopwatch watch;
  while (watch.seconds() < seconds && !stop::requested()) std::this_thread::sleep_for(std::chrono::milliseconds(100));
}

std::optional<std::filesystem::path> CheckpointWatch::next() {
  const auto& world = session_.world.group();
  const Stopwatch watch;
  for (;;) {
    if (told_to_stop(world)) throw AgreedError({Exit::requeue, "told to stop; what is scored stays scored"}, world);
    std::string answer;
    bool ends = false;
    on_root(world, [&] {
      const auto status = run_status();  // before looking: the last checkpoint comes first
      if (const auto path = oldest_unscored()) {
        answer = path->string();
        return;
      }
      ends = status == RunStatus::done;
      if (ends) return;
      check_patience(watch.seconds(), status);
      if (has_said_that_it_waits_) return;
      log::info("waiting for checkpoints of {}", run_.string());
      has_said_that_it_waits_ = true;
    });
    answer = world.broadcast(answer);
    if (world.any(ends)) return std::nullopt;
    if (!answer.empty()) return answer;
    sleep_unless_stopped(look_every_seconds_);
  }
}

}  // namespace millrace
