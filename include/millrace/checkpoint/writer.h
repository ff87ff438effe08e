#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "millrace/checkpoint/run_lease.h"
#include "millrace/checkpoint/run_state.h"
#include "millrace/comm/group.h"
#include "millrace/core/error.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/sharded_optimizer.h"

namespace millrace {

class FilePlan;
class ReadBack;
class Snapshot;

// Writes checkpoints (reader.h) in the background from a host copy, one at a time:
//
//   start: copy, begin to write  ->  commit: publish, begin to read it back  ->  settle: delete older ones
//
// These and make_room are collective over the trainers; each waits for what the previous one began.
class CheckpointWriter {
 public:
  struct Options {
    int keep = 3;  // newest checkpoints that are kept
    // The run continues from a checkpoint outside its own folder. Every checkpoint that is in the folder then belongs
    // to a history that is not continued, even if its step is lower.
    bool begins_elsewhere = false;
    // guard.on_repeat=rollback: a checkpoint saved during a row of skipped steps deletes no older one, because training
    // may return to it.
    bool goes_back = false;
    std::optional<Duration> keep_every{};  // also kept, for good: the first one at or after each multiple of this
    int max_files = 64;                    // of tensors in a checkpoint
    std::vector<std::string> hosts{};      // of the trainers; empty: all are on one
    // Free bytes of a node's memory when the first checkpoint is written; if not set, the system is asked.
    std::optional<std::uint64_t> free_memory{};
    // Its nonce is part of the temporary folder's name, and nothing is published once another instance has the lease.
    // null: the run folder is ours.
    const RunLease* lease = nullptr;
  };

  // Removes what a killed run left half written. `start`: where the run stands, that is, its last checkpoint; newer
  // ones, of a history that is not continued, are renamed to step-N.abandoned-* by the first commit.
  CheckpointWriter(std::filesystem::path run_dir, Group trainers, const RunPoint& start, Options options);
  ~CheckpointWriter();

  // Copies the state to host memory and starts writing it; if some node has no room for the copy, returns only when it
  // is written. `extra` goes into the manifest (config, data manifest, kind of model), `state.ledger` into a file.
  void start(const ShardedModel& model, const ShardedAdamW& optimizer, const RunState& state,
             const nlohmann::json& extra);
  // Publishes the checkpoint under its name, or removes it with a warning when any rank failed (a full disk does not
  // end the run), and has its files read back by trainers other than their writers. True when one was published.
  // Error(numerics) when there was a number that is not finite.
  bool commit();
  // What reading the checkpoint back has shown; `whole` also if there is nothing to settle. Older checkpoints are
  // deleted only if this one is whole, and Options::keep counts only whole ones; the other two results come with a
  // warning.
  enum class Found {
    whole,    // on disk as it was written
    unread,   // cannot be read at present, which does not mean that it is damaged
    damaged,  // other bytes, or no file: renamed to step-N.damaged, and no longer the last one
  };
  Found settle();
  // In place of `settle`, when there is no time: older checkpoints stay.
  void give_up_reading_back();
  // After a failed save: deletes damaged checkpoints. True if there were any, so that another try may succeed.
  bool make_room();

  // True while this rank is writing or reading back.
  bool busy() const;
  // Seconds that this rank spent on the last checkpoint while training went on: writing it (known after commit) and
  // reading it back (known after settle).
  double seconds_beside_training() const { return seconds_beside_training_; }
  bool in_flight() const { return stage_ == Stage::writing; }
  bool reads_back() const { return stage_ == Stage::reading_back; }
  // Why the last save published none; empty if it did. The same on all trainers.
  const std::optional<Error>& failure() const { return failure_; }
  // Step of the last checkpoint that was published by this writer; 0 = none.
  std::int64_t last_step() const { return last_step_; }
  // Where the last checkpoint of the run stands.
  const RunPoint& last_point() const { return last_point_; }

 private:
  enum class Stage { idle, writing, reading_back };
  struct Job;
  void plan_files(const ShardedModel& model, const ShardedAdamW& optimizer);
  bool find_room(bool pinned);
  void check_lease() const;
  std::string publish(const Job& job, const std::vector<std::string>& reports);
  static void publish_under_its_name(const Job& job);
  int reader_of(int writer) const;

  std::filesystem::path run_dir_;
  Group trainers_;
  Options options_;
  Stage stage_ = Stage::idle;
  std::unique_ptr<FilePlan> files_;
  std::unique_ptr<Snapshot> snapshot_;
  bool has_room_ = true;  // for the snapshot, on every node
  std::unique_ptr<Job> job_;
  std::unique_ptr<ReadBack> read_back_;
  double seconds_beside_training_ = 0;
  bool has_published_ = false;
  std::optional<Error> failure_;
  int saves_ = 0;
  // Of the last checkpoint of the run and the one before.
  RunPoint last_point_, point_before_;
  std::int64_t last_step_ = 0, step_before_ = 0;
  bool last_replaces_older_ = true;
  std::set<std::int64_t> unread_;  // steps whose checkpoints could not be read back
};

}  // namespace millrace
