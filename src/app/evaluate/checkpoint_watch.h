#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launch/session.h"
#include "millrace/checkpoint/manifest.h"
#include "millrace/checkpoint/reader.h"
#include "millrace/core/run_status.h"

namespace millrace {

// What a checkpoint is known by: the digests of its files, without reading these.
std::string digest_of(const std::vector<CheckpointFile>& files);

// The checkpoints of a run, as they appear. Rank 0 looks; all get the same answers.
class CheckpointWatch {
 public:
  // `is_scored` answers on rank 0.
  using IsScored = std::function<bool(const CheckpointName& checkpoint, const CheckpointManifest& manifest)>;
  CheckpointWatch(const Session& session, std::filesystem::path run, double patience_seconds, IsScored is_scored,
                  double look_every_seconds = 5);

  // The oldest one that is not scored, before the run's retention takes it; waits for it. Nothing once the run is done
  // and all are scored. Error(usage) when none has come for so long, or, of a run that has failed, for a hundredth of
  // that: a person may be starting it again. Error(requeue) when told to stop. Collective.
  std::optional<std::filesystem::path> next();
  // From now on it is left out.
  void pass_over(const std::filesystem::path& checkpoint) { passed_.insert(checkpoint); }

 private:
  std::optional<std::filesystem::path> oldest_unscored();
  std::optional<RunStatus> run_status() const;
  void check_patience(double waited, std::optional<RunStatus> status) const;

  const Session& session_;
  const std::filesystem::path run_;
  const double patience_seconds_, look_every_seconds_;
  const IsScored is_scored_;
  std::set<std::filesystem::path> passed_;
  std::map<std::filesystem::path, std::string> scored_;  // and the digests of their manifests, which may be megabytes
  // Times of the folder of checkpoints: as of the last look that found none unscored, and as of two such looks.
  std::filesystem::file_time_type seen_ = std::filesystem::file_time_type::min(), judged_ = seen_;
  bool has_said_that_it_waits_ = false;
};

}  // namespace millrace
