#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "evaluate/captions.h"
#include "evaluate/evaluate_job.h"
#include "evaluate/evaluation_file.h"
#include "evaluate/painter.h"
#include "evaluate/protocol.h"
#include "evaluate/scorer.h"
#include "launch/session.h"
#include "millrace/checkpoint/run_lease.h"
#include "millrace/train/validation.h"

namespace millrace {

// How a model is named on screen: its step or path, that its weights are the raw ones, and the guidance scale.
std::string name_of(const nlohmann::ordered_json& line);

// Scores sets of pictures, a line of OUT/evaluation.jsonl each. A model is told by `checkpoint`, of a run's also by
// `step`, `digest` and `weights`, and by its `protocol`, which is whole on rank 0. Everything is collective but
// `is_scored` and `protocol`.
class Evaluation {
 public:
  // Reads captions, names of pictures, networks and reference, then takes OUT/evaluation, which has no other owner
  // meanwhile.
  Evaluation(const Session& session, const EvaluateRoot& root, const EvaluateJob& job);

  void score_images();
  void score_pipeline();
  // Of what `painter` paints at each guidance scale.
  void score_model(const nlohmann::ordered_json& model, Painter& painter, const std::optional<ValidationLoss>& loss);
  // Of a run's checkpoint of which no pictures are measured.
  void score_loss(const nlohmann::ordered_json& model, const std::optional<ValidationLoss>& loss) {
    put(model, {}, loss);
  }

  // At each guidance scale, under its protocol. On rank 0, which has the file.
  bool is_scored(nlohmann::ordered_json model) const;
  nlohmann::ordered_json protocol(const ScoredModel& model) const;

  std::filesystem::path folder() const { return job_.out / "evaluation"; }
  Painter::Arithmetic arithmetic() const { return arithmetic_; }

 private:
  const Group& world() const { return session_.world.group(); }
  std::int64_t painted() const;
  void check_count(std::int64_t pictures, const char* key, const std::string& path) const;
  void warn_of_prompts() const;
  void warn_of_order() const;

  bool holds(const nlohmann::ordered_json& line) const;
  bool is_held(const nlohmann::ordered_json& line) const;
  Scores paint_and_score(Painter& painter, const nlohmann::ordered_json& line, double scale);
  void write_first_pictures(const nlohmann::ordered_json& line, std::vector<Image> images,
                            const std::vector<ImageRequest>& requests) const;
  void put(nlohmann::ordered_json line, const Scores& scores, const std::optional<ValidationLoss>& loss);
  void write_sweep(const nlohmann::ordered_json& model) const;

  const Session& session_;
  const EvaluateRoot& root_;
  const EvaluateJob& job_;
  const Painter::Arithmetic arithmetic_;
  CaptionList list_;                                                    // of evaluate.prompts
  std::vector<std::filesystem::path> pictures_;                         // of --images
  std::vector<std::string> captions_;                                   // of these, for the CLIP score
  std::optional<Scorer> scorer_;                                        // if pictures are measured
  nlohmann::ordered_json contents_ = nlohmann::ordered_json::object();  // of rank 0
  std::optional<RunLease> lease_;
  std::optional<EvaluationFile> file_;  // of rank 0
};

}  // namespace millrace
