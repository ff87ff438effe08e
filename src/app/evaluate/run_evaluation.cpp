#include "evaluate/run_evaluation.h"

#include <fmt/format.h>

#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "run/resume.h"

namespace millrace {

using Json = nlohmann::ordered_json;

static Json about(const CheckpointReader& checkpoint) {
  return {{"step", checkpoint.state().step},
          {"checkpoint", checkpoint.path().string()},
          {"digest", digest_of(checkpoint.files())}};
}

void RunEvaluation::score_newest() {
  on_all(world(), [&] {
    if (!fs::is_directory(job_.path)) fail(Exit::io, "--run {}: no such folder", job_.path.string());
  });
  const auto checkpoint = find_checkpoint(job_.path, world());
  if (!checkpoint)
    throw AgreedError(Error(Exit::io, fmt::format("{} has no checkpoint yet", job_.path.string()),
                            "checkpoint.every says how often a run saves; --follow waits for the first one"),
                      world());
  bool is_old = false;
  on_root(world(), [&] { is_old = evaluation_.is_scored(about(*checkpoint)); });
  if (world().any(is_old)) {
    if (session_.is_root()) log::info("{} is scored already", name_of(about(*checkpoint)));
    return;
  }
  make_networks(*checkpoint);
  load_weights(*checkpoint);
  score_loaded(*checkpoint);
}

void RunEvaluation::follow() {
  CheckpointWatch watch(session_, job_.path, root_.evaluate.patience.count,
                        [&](std::int64_t step, const std::string& digest) {
                          return evaluation_.is_scored({{"step", step}, {"digest", digest}});
                        });
  while (const auto path = watch.next()) {
    std::optional<CheckpointReader> checkpoint;
    if (!try_read(*path, watch, [&] { checkpoint = CheckpointReader::open(*path, world()); })) continue;
    make_networks(*checkpoint);
    if (try_read(*path, watch, [&] { load_weights(*checkpoint); })) try_to_score(*checkpoint, watch);
  }
}

// What fails by the checkpoint costs this one; what fails by the model's folder or the data would cost all.
bool RunEvaluation::try_read(const fs::path& checkpoint, CheckpointWatch& watch,
                             const std::function<void()>& read) const {
  try {
    read();
    return true;
  } catch (const AgreedError& error) {
    const bool is_there = on_all(world(), [&] { return fs::exists(checkpoint); });
    if (session_.is_root())
      log::warning("{} is passed over: {}", checkpoint.string(), is_there ? error.what() : "it is gone");
    watch.pass_over(checkpoint);
    return false;
  }
}

// With the first checkpoint.
void RunEvaluation::make_networks(const CheckpointReader& checkpoint) {
  if (painter_) return;
  PipelineFolder pipeline;
  TrainConfig trained;
  on_all(world(), [&] {
    if (is_of_vae(checkpoint))
      fail(Exit::usage, "{} is of an autoencoder, which paints nothing by itself", checkpoint.path().string());
    pipeline = pipeline_of(checkpoint);
    painter_.emplace(checkpoint, pipeline, root_.tokenizer, evaluation_.arithmetic());
    trained = trained_config(checkpoint);
    if (session_.is_root() && !trained.data.validation && !root_.measures_pictures())
      log::warning("evaluate.metrics is empty, and {} has no data.validation: there is nothing to measure",
                   job_.path.string());
    trained.run.dir.value = evaluation_.folder().string();
  });
  if (trained.data.validation)
    loss_.emplace(session_, trained, pipeline, painter_->unet(), evaluation_.arithmetic().dtype);
}

void RunEvaluation::load_weights(const CheckpointReader& checkpoint) {
  on_all(world(), [&] { painter_->load_weights(checkpoint); });
}

// Weights may give pictures that are not finite, and later ones may not.
void RunEvaluation::try_to_score(const CheckpointReader& checkpoint, CheckpointWatch& watch) {
  try {
    score_loaded(checkpoint);
  } catch (const AgreedError& error) {
    if (error.exit() != Exit::numerics) throw;
    if (session_.is_root()) log::warning("{} is passed over: {}", checkpoint.path().string(), error.what());
    watch.pass_over(checkpoint.path());
  }
}

void RunEvaluation::score_loaded(const CheckpointReader& checkpoint) {
  std::optional<ValidationLoss> loss;
  if (loss_) loss = loss_->measure();
  evaluation_.score_model(about(checkpoint), *painter_, loss);
}

}  // namespace millrace
