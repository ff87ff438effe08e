#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millrace/checkpoint/manifest.h"
#include "millrace/checkpoint/run_state.h"
#include "millrace/comm/agree.h"
#include "millrace/comm/group.h"

// Checkpoints: RUN/checkpoints/step-00002000/ with one safetensors file per writer and MANIFEST.json. A directory under
// its final name with a valid manifest is a checkpoint; anything else is not. docs/formats.md describes the bytes.
namespace millrace {

// A checkpoint cannot be read at present, which does not mean that it is damaged. Thrown on all ranks of a group.
class UnreadableCheckpoint : public AgreedError {
 public:
  using AgreedError::AgreedError;
};

// A checkpoint that exists. Only its manifest is in memory and no file is open.
class CheckpointReader {
 public:
  // Checks everything, see `verify`. Error(io) names what is wrong; UnreadableCheckpoint.
  static CheckpointReader open(const std::filesystem::path& path);
  // The same on all ranks of a group: rank 0 reads the manifest, each of `verifiers` (all ranks if there are none)
  // verifies a share of the files, and all throw what one has found. If up to 64 verifiers restore the checkpoint
  // afterwards and split the state as its writers did, each finds its part still cached in its node's memory.
  // Collective.
  static CheckpointReader open(const std::filesystem::path& path, const Group& group,
                               const std::vector<int>& verifiers = {});

  const std::filesystem::path& path() const { return path_; }
  const nlohmann::json& manifest() const { return manifest_.json; }
  const std::vector<CheckpointFile>& files() const { return manifest_.files; }
  const std::map<std::string, CheckpointTensor>& tensors() const { return manifest_.tensors; }
  RunState state() const;
  // The ledger as Ledger::load_state takes it; empty if there is none.
  std::string ledger() const;

  // "weights", "exp_avg", "exp_avg_sq", and "ema" when the run kept one.
  bool has(const std::string& kind) const;
  std::vector<std::string> names(const std::string& kind) const;
  // Error(io) when it has no such tensor.
  const CheckpointTensor& entry(const std::string& kind, const std::string& name) const;

 private:
  CheckpointReader(std::filesystem::path path, const std::string& manifest);
  // Reads a whole file, once. Error(io) unless size and digest are those of the manifest, the tensors that the manifest
  // names are there, and every number is finite.
  void verify(std::size_t file) const;

  std::filesystem::path path_;
  CheckpointManifest manifest_;
};

// For each file, in order, which of `ranks` ranks verifies it: files of tensors in equal runs, others rank 0.
std::vector<int> verifiers_of(const std::vector<CheckpointFile>& files, int ranks);

// A directory with a checkpoint's name. Lists have the newest first.
struct CheckpointName {
  std::filesystem::path path;
  std::int64_t step = 0;
};
std::vector<CheckpointName> list_checkpoints(const std::filesystem::path& run_dir);

// The newest valid checkpoint of a run (of a step before `before`, if given), verified as by `open`; broken ones are
// reported and passed over. Nothing when the run has none; Error(io) when directories exist and none is valid,
// UnreadableCheckpoint when storage is away. Collective.
std::optional<CheckpointReader> find_checkpoint(const std::filesystem::path& run_dir, const Group& group,
                                                std::optional<std::int64_t> before = {},
                                                const std::vector<int>& verifiers = {});

}  // namespace millrace
