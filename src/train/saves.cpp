#include "saves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "millrace/checkpoint/cadence.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/comm/agree.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/core/stopwatch.h"
#include "pace.h"
#include "weight_check.h"

namespace millrace {
namespace {

constexpr double slow_disk = 50e6;  // bytes a second of one writer: replicas share the writing
constexpr double retry_seconds = 300;

CheckpointWriter::Options writer_options(const TrainerContext& context, std::int64_t step) {
  std::vector<std::string> hosts;
  for (const auto& [rank, host] : context.trainer_ranks) hosts.push_back(host);
  return {.keep = context.config.checkpoint.keep,
          .begins_elsewhere = begins_elsewhere(context, step),
          .goes_back = context.config.guard.on_repeat == GuardConfig::OnRepeat::rollback,
          .keep_every = context.config.checkpoint.keep_every,
          .hosts = std::move(hosts),
          .lease = context.lease};
}

}  // namespace

bool begins_elsewhere(const TrainerContext& context, std::int64_t step) {
  if (!context.resumed_from || !context.is_root()) return false;
  std::error_code error;
  const auto own_folder = checkpoints_in(context.config.run_dir);
  const auto is_own = [&](const std::filesystem::path& path) {
    return std::filesystem::equivalent(path.parent_path(), own_folder, error) && path.filename() == step_name(step);
  };
  const auto given = (std::filesystem::absolute(*context.resumed_from, error) / "").parent_path();  // without a last /
  if (!error && is_own(given)) return false;                                                        // or a link there
  error.clear();
  const auto resumed = std::filesystem::canonical(*context.resumed_from, error);
  if (error) return false;
  const bool is_ours = is_own(resumed);
  return !error && !is_ours;
}

Saves::Saves(const TrainerContext& context, RunState& state, DataAccount& data, Progress* progress)
    : context_(context),
      state_(state),
      data_(data),
      progress_(progress),
      writer_(context.config.run_dir, context.trainers, state.point(), writer_options(context, state.step)),
      state_file_(context.config.run_dir, context.lease),
      start_(state.step),
      started_at_(state.seconds) {
  for (const auto& [kind, shards] : context.optimizer.state())
    for (const auto& shard : shards) guessed_seconds_ += 4.0 * static_cast<double>(shard.numel()) / slow_disk;
  guessed_seconds_ /= context.model.plan().replicas;
}

bool Saves::wants(double seconds) const {
  if (writer_.in_flight() || writer_.reads_back()) return false;
  const auto& every = context_.config.checkpoint.every;
  if (!every) return false;
  if (has_failed_ && seconds - started_at_ >= retry_seconds) return true;
  if (every->value) return false;
  return seconds - started_at_ >= auto_save_interval(cost_, context_.trainers.size());
}

double Saves::seconds_needed() const {
  if (!context_.config.checkpoint.every) return 0;
  return longest_save_.seconds() > 0 ? longest_save_.seconds() : guessed_seconds_;
}

void Saves::advance(const std::vector<SampleRef>& refs) {
  for (const auto& ref : refs) own_cursors_[ref.stripe] = ref.after;
}

void Saves::after_step(bool is_busy, bool is_due, double seconds) {
  if (!is_busy && writer_.reads_back()) settle();
  if (!is_busy && writer_.in_flight()) commit();
  if (!is_due) return;
  if (writer_.in_flight()) commit();
  if (writer_.reads_back()) settle();
  begin();
  started_at_ = seconds;
}

void Saves::finish_begun() {
  if (writer_.in_flight()) commit();
  if (writer_.reads_back()) settle();
}

void Saves::save_last() {
  if (!context_.config.checkpoint.every || state_.step == start_) return;
  using enum CheckpointWriter::Found;
  const auto is_published = [&] { return writer_.last_step() == state_.step; };
  if (writer_.in_flight()) commit();
  if (!is_published()) writer_.give_up_reading_back();
  auto found = is_published() ? settle() : damaged;
  for (int attempt = 0; found == damaged && attempt < 2; ++attempt) {
    begin();
    commit();
    if (!is_published()) {  // the disk refuses
      if (writer_.make_room()) continue;
      break;
    }
    found = settle();  // or loses what it took
  }
  std::optional<Error> error;
  if (found == damaged) error = failure_of_last();
  if (found == unread)
    error = Error(Exit::io, fmt::format("the last checkpoint, of step {}, cannot be read at present", state_.step),
                  "earlier checkpoints are untouched; start again once the storage answers");
  if (error) throw AgreedError(*error, context_.trainers);
}

// The cause tells what helps. Without one the checkpoint was written, and read back as something else.
Error Saves::failure_of_last() const {
  const std::string again = "earlier checkpoints are untouched: start again when that is mended";
  const auto& cause = writer_.failure();
  if (!cause)
    return Error(Exit::io, fmt::format("the last checkpoint, of step {}, could not be written", state_.step),
                 "the disk returns other bytes than were written; " + again);
  return Error(Exit::io,
               fmt::format("the last checkpoint, of step {}, could not be written: {}", state_.step, cause->what()),
               cause->hint().empty() ? again : cause->hint() + "; " + again);
}

void Saves::begin() {
  enter_slow(context_, phase::saving);
  const Stopwatch watch;
  // Replicas that differ would each write their part, and restoring makes them equal again: nobody would ever know.
  if (context_.model.plan().replicas > 1 && context_.config.guard.digest_every) compare_weights(context_, state_.step);
  data_.merge();
  gather_cursors();
  if (context_.is_root()) {
    progress_->sync(state_.step);
    state_.ledger = data_.state();
    data_.write_report();
  }
  auto manifest_extra = context_.manifest_extra;
  if (context_.measure) manifest_extra.update(context_.measure());
  writer_.start(context_.model, context_.optimizer, state_, manifest_extra);
  has_failed_ = !writer_.in_flight();
  cost_ = watch.seconds();
}

// Training stands still for this part of the save that is under way. What else happened since the save began, steps or
// pictures, is none of what the next one will take.
template <class Result>
Result Saves::go_on(Result (CheckpointWriter::*part)()) {
  const Stopwatch watch;
  enter_slow(context_, phase::saving);
  const auto result = (writer_.*part)();
  cost_ += watch.seconds();
  const auto beside_ms = context_.trainers.largest(std::llround(1e3 * writer_.seconds_beside_training()));
  took_ = cost_ + 1e-3 * static_cast<double>(beside_ms);
  longest_save_.raise(took_);
  return result;
}

void Saves::commit() {
  has_failed_ = !go_on(&CheckpointWriter::commit);
  if (has_failed_) return;
  if (context_.is_root())
    log::info("checkpoint {} (training stood {:.1f} s, written in {:.1f} s)", *newest(), cost_, took_);
  write_state();
}

CheckpointWriter::Found Saves::settle() {
  longest_save_.fade();  // this one was written: it tells how long that takes now
  const auto found = go_on(&CheckpointWriter::settle);
  if (found == CheckpointWriter::Found::damaged) {
    has_failed_ = true;
    write_state();
  }
  return found;
}

// The places of all stripes, in rank 0's state. A trainer sends those of its own stripes, which nobody else has moved.
void Saves::gather_cursors() {
  const auto parts = context_.trainers.gather_strings(to_json(own_cursors_).dump());
  if (!context_.is_root()) return;
  StripeCursors cursors;
  for (const auto& part : parts) cursors.merge(cursors_from_json(nlohmann::json::parse(part)));
  const bool again = state_.step == cursors_step_;  // the save that this one repeats has failed
  check_all_moved(again ? StripeCursors{} : state_.cursors, cursors, context_.data.stripes.stripes);
  state_.cursors = std::move(cursors);
  cursors_step_ = state_.step;
}

void Saves::stop_because(const std::string& reason) {
  reason_ = reason;
  write_state();
}

void Saves::write_state() const {
  if (context_.is_root())
    state_file_.update(reason_.empty() ? RunStatus::running : RunStatus::stopping, writer_.last_point(), newest(),
                       reason_);
}

std::optional<SavedPoint> Saves::last_saved() const {
  if (!context_.config.checkpoint.every) return std::nullopt;
  const auto& saved = writer_.last_point();
  return SavedPoint{saved.step, state_.seconds - saved.seconds};
}

bool Saves::hold_all() const {
  return newest() && (writer_.last_step() == state_.step || state_.step == start_);
}

std::optional<std::string> Saves::newest() const {
  if (writer_.last_step() == 0) return context_.resumed_from;
  return (checkpoints_in(context_.config.run_dir) / step_name(writer_.last_step())).string();
}

}  // namespace millrace
