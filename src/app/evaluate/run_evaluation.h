#pragma once
#include <torch/types.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evaluate/checkpoint_watch.h"
#include "evaluate/evaluation.h"
#include "evaluate/painter.h"
#include "evaluate/protocol.h"
#include "evaluate/run_loss.h"
#include "launch/session.h"
#include "millrace/checkpoint/manifest.h"
#include "millrace/checkpoint/reader.h"

namespace millrace {

// What is wrong with the path, or with evaluate.weights of one checkpoint, before networks and reference are read and
// anything is written. Collective.
void check_checkpoint(const Session& session, const EvaluateRoot& root, const EvaluateJob& job);

// Scores a run's checkpoints: their pictures, and the loss on its data.validation if it has one.
class RunEvaluation {
 public:
  RunEvaluation(const Session& session, const EvaluateRoot& root, const EvaluateJob& job)
      : session_(session), root_(root), job_(job), evaluation_(session, root, job) {}

  // The newest checkpoint, or the one that the job names.
  void score_one();
  // Each checkpoint of the run once, until it is done.
  void follow();

 private:
  const Group& world() const { return session_.world.group(); }
  // A checkpoint as evaluations see it: by its manifest, before anything is loaded.
  struct Found {
    std::filesystem::path path;
    std::int64_t step;
    const nlohmann::json& manifest;
    const std::vector<CheckpointFile>& files;
    bool has_ema;
  };
  // By the settings that a run had, of which a run's checkpoints may have several.
  struct RunSettings {
    std::string key;
    TrainConfig trained;
    ScoredModel scored;
  };
  static Found found(const CheckpointReader& checkpoint);
  const RunSettings& settings_of(const Found& checkpoint);
  nlohmann::ordered_json about(const Found& checkpoint);
  CheckpointReader find_one() const;
  torch::Dtype loss_dtype(const TrainConfig& trained) const;
  bool try_read(const std::filesystem::path& checkpoint, CheckpointWatch& watch,
                const std::function<void()>& read) const;
  bool is_newest(const CheckpointReader& checkpoint) const;
  bool try_make_networks(const CheckpointReader& checkpoint, CheckpointWatch& watch);
  void make_networks(const CheckpointReader& checkpoint);
  void load_weights(const CheckpointReader& checkpoint);
  void score_loaded(const CheckpointReader& checkpoint);
  void try_to_score(const CheckpointReader& checkpoint, CheckpointWatch& watch);

  const Session& session_;
  const EvaluateRoot& root_;
  const EvaluateJob& job_;
  Evaluation evaluation_;
  std::optional<RunSettings> settings_;            // of the checkpoint that was looked at last
  std::string made_by_;                            // the key of those that the networks were made by
  std::optional<Painter> painter_;                 // where pictures are measured
  std::optional<UNet2DConditionModel> unet_;       // the painter's, or one for the loss alone
  std::optional<UNet2DConditionModel> loss_unet_;  // where the loss is measured in another dtype than pictures
  std::optional<RunLoss> loss_;
};

}  // namespace millrace
