#pragma once
#include <filesystem>
#include <functional>
#include <optional>

#include "evaluate/checkpoint_watch.h"
#include "evaluate/evaluation.h"
#include "evaluate/painter.h"
#include "evaluate/run_loss.h"
#include "millrace/checkpoint/reader.h"
#include "run/session.h"

namespace millrace {

// Scores a run's checkpoints: their pictures, and the loss on its data.validation if it has one.
class RunEvaluation {
 public:
  RunEvaluation(const Session& session, const EvaluateRoot& root, const EvaluateJob& job)
      : session_(session), root_(root), job_(job), evaluation_(session, root, job) {}

  void score_newest();
  // Each checkpoint of the run once, until it is done.
  void follow();

 private:
  const Group& world() const { return session_.world.group(); }
  bool try_read(const std::filesystem::path& checkpoint, CheckpointWatch& watch,
                const std::function<void()>& read) const;
  void make_networks(const CheckpointReader& checkpoint);
  void load_weights(const CheckpointReader& checkpoint);
  void score_loaded(const CheckpointReader& checkpoint);
  void try_to_score(const CheckpointReader& checkpoint, CheckpointWatch& watch);

  const Session& session_;
  const EvaluateRoot& root_;
  const EvaluateJob& job_;
  Evaluation evaluation_;
  std::optional<Painter> painter_;  // both made with the first checkpoint
  std::optional<RunLoss> loss_;
};

}  // namespace millrace
