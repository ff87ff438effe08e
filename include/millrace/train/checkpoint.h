#pragma once
#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millrace/comm/group.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/sharded_optimizer.h"
#include "millrace/train/run_lease.h"
#include "millrace/train/run_state.h"

// Checkpoints: RUN/checkpoints/step-00002000/ with one safetensors file per writer and MANIFEST.json. A directory under
// its final name with a valid manifest is a checkpoint; anything else is not. docs/formats.md describes the bytes.
namespace millrace {

// A directory that looks like a checkpoint, newest first in lists.
struct CheckpointName {
  std::filesystem::path path;
  std::int64_t step = 0;
};
std::vector<CheckpointName> list_checkpoints(const std::filesystem::path& run_dir);

// A checkpoint, open for reading. Tensors are logical: whole, fp32, in the module's order of dimensions.
class CheckpointReader {
 public:
  // Checks the manifest's digest, every file's size, the tensor table and (with `verify`) every file's digest and that
  // no number is NaN or infinite; Error(io) names what is wrong.
  static CheckpointReader open(const std::filesystem::path& path, bool verify = true);

  const std::filesystem::path& path() const { return path_; }
  const nlohmann::json& manifest() const { return manifest_; }
  RunState state() const;
  // "weights", "exp_avg", "exp_avg_sq", and "ema" when the run kept one.
  bool has(const std::string& kind) const;
  std::vector<std::string> names(const std::string& kind) const;
  torch::Tensor tensor(const std::string& kind, const std::string& name) const;

 private:
  struct Files;
  std::filesystem::path path_;
  nlohmann::json manifest_;
  std::shared_ptr<Files> files_;
};

// The newest valid checkpoint of a run, found by rank 0 of `trainers` and agreed on by all; broken ones are reported
// and passed over. Nothing when the run has none; Error(io) when directories exist and none is valid.
std::optional<std::filesystem::path> find_checkpoint(const std::filesystem::path& run_dir, const Group& trainers);

// Copies a checkpoint's tensors into this rank's shards. Error(io) when a tensor is missing or has another shape.
void restore(const CheckpointReader& checkpoint, ShardedAdamW& optimizer);

// Which checkpoints stay: the newest `keep`, and for good the first one at or after each multiple of `keep_every`.
struct Retention {
  int keep = 3;
  std::optional<Duration> keep_every;
};

// Writes checkpoints in the background from a host copy, one at a time. All calls are collective over `trainers` except
// `busy`.
class CheckpointWriter {
 public:
  // Removes what a killed run has left half written. `start`: where the run stands, which is what the last checkpoint
  // holds; newer ones, of a time that is not continued, are renamed to step-N.abandoned-* by the first commit. `lease`
  // (null: in tests): names the temporary folder, and nothing is published once another instance has it.
  CheckpointWriter(std::filesystem::path run_dir, Group trainers, Retention retention, const RunPoint& start,
                   const RunLease* lease = nullptr);
  ~CheckpointWriter();

  // Copies the shards to host memory and starts writing this rank's file; waits for and commits an earlier one first.
  // `extra` goes into the manifest (config, data manifest, kind of model).
  void start(const ShardedModel& model, const ShardedAdamW& optimizer, const RunState& state,
             const nlohmann::json& extra);
  // True while this rank's file is being written.
  bool busy() const;
  // Every rank is done: publishes the directory, or removes it with a warning when any rank failed (a full disk does
  // not end the run). True when a checkpoint was published. Error(numerics) when there was a number that is not finite.
  bool commit();
  bool in_flight() const { return in_flight_; }
  // Step of the last checkpoint that was published by this writer; 0 = none.
  std::int64_t last_step() const { return last_step_; }
  // Where the last checkpoint of the run stands.
  const RunPoint& last_point() const { return last_point_; }

 private:
  struct Job;
  void publish(Job& job, const std::vector<std::string>& reports) const;
  void abandon_newer() const;
  void retire() const;

  std::filesystem::path run_dir_;
  Group trainers_;
  Retention retention_;
  std::unique_ptr<Job> job_;
  bool in_flight_ = false;
  std::int64_t last_step_ = 0;
  RunPoint last_point_;  // of the last checkpoint of the run
  const RunLease* lease_;
};

std::string step_name(std::int64_t step);  // "step-00002000"

}  // namespace millrace
