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
// These and make_room are collective over the trainers; each waits for what the one before has begun.
class CheckpointWriter {
 public:
  struct Options {
    int keep = 3;  // newest checkpoints that stay
    // The run continues from a checkpoint outside its own folder. Every checkpoint that is in the folder then belongs
    // to a history that is not continued, even if its step is lower.
    bool begins_elsewhere = false;
    // Where true, one whose step is in a row of bad ones replaces none: training may go back to before them.
    bool goes_back = false;
    std::optional<Duration> keep_every{};  // and for good the first one at or after each multiple of this
    int max_files = 64;                    // of tensors in a checkpoint
    std::vector<std::string> hosts{};      // of the trainers; empty: all are on one
    // Bytes of a node's memory that are free when the first checkpoint is written; unknown: asks the system.
    std::optional<std::uint64_t> free_memory{};
    // Names the temporary folder, and nothing is published once another instance has it; null: the folder is ours.
    const RunLease* lease = nullptr;
  };

  // Removes what a killed run has left half written. `start`: where the run stands, which is what the last checkpoint
  // holds; newer ones, of a time that is not continued, are renamed to step-N.abandoned-* by the first commit.
  CheckpointWriter(std::filesystem::path run_dir, Group trainers, const RunPoint& start, Options options);
  ~CheckpointWriter();

  // Copies the state to host memory and starts writing it; where some node has no room for the copy, writes before it
  // returns. `extra` goes into the manifest (config, data manifest, kind of model), `state.ledger` into a file.
  void start(const ShardedModel& model, const ShardedAdamW& optimizer, const RunState& state,
             const nlohmann::json& extra);
  // Publishes the checkpoint under its name, or removes it with a warning when any rank failed (a full disk does not
  // end the run), and has its files read back, by other trainers than wrote them. True when one was published.
  // Error(numerics) when there was a number that is not finite.
  bool commit();
  // What reading it back has shown; `whole` too where there is nothing to settle. Older checkpoints go only when this
  // one is whole, and Options::keep counts only those that are; the other two come with a warning.
  enum class Found {
    whole,    // on disk as it was meant
    unread,   // storage does not give it at present, which says nothing about it
    damaged,  // other bytes, or no file: it is renamed to step-N.damaged, and no longer the last one
  };
  Found settle();
  // Instead of `settle`, when there is no time: older ones stay.
  void give_up_reading_back();
  // Behind a save that has failed: deletes what is damaged; whether there was any, so that another try may do.
  bool make_room();

  // True while this rank is writing or reading back.
  bool busy() const;
  // Seconds that this rank has written (up to the last commit) and read back (up to the last settle) the last
  // checkpoint while training went on.
  double seconds_beside_training() const { return seconds_beside_training_; }
  bool in_flight() const { return stage_ == Stage::writing; }
  bool reads_back() const { return stage_ == Stage::reading_back; }
  // Why the last save has published none; nothing where it has. The same on all trainers.
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
  std::set<std::int64_t> unread_;  // steps of this writer's checkpoints that were
};

}  // namespace millrace
