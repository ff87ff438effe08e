#include "evaluate/run_evaluation.h"

#include <fmt/format.h>

#include "millrace/comm/agree.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/nn/device.h"
#include "run/encoders.h"
#include "run/trained_run.h"

namespace millrace {

using Json = nlohmann::ordered_json;

// "ema" or "raw", as an export chooses them.
static std::string weights_to_score(EvaluateConfig::Weights wanted, bool has_ema, const fs::path& checkpoint) {
  const auto chosen = exported_weights(wanted, has_ema, checkpoint, "evaluate.weights");
  return chosen == EvaluateConfig::Weights::raw ? "raw" : "ema";
}

// A run's own, unless somebody says otherwise.
static TokenizerConfig tokenizer_to_paint_with(const EvaluateRoot& root, const TrainConfig& trained) {
  return root.tokenizer.is_set() ? root.tokenizer.chosen() : trained.tokenizer;
}

static Painting painting_of_run(const EvaluateRoot& root, const TrainConfig& trained, const PipelineFolder& pipeline,
                                torch::Dtype dtype) {
  const auto factor = AutoencoderKLConfig::from_json(pipeline.config("vae")).factor();
  const auto own_side = trained.transform.resolution / factor * factor;
  const auto scheduler = trained_scheduler(pipeline.scheduler(), trained.objective).as_exported();
  return {.sampler = sampler_class(scheduler, root.generate),
          .height = root.generate.height.is_auto() ? own_side : *root.generate.height.value,
          .width = root.generate.width.is_auto() ? own_side : *root.generate.width.value,
          .dtype = dtype_name(dtype),
          .tokenizer = tokenizer_to_paint_with(root, trained)};
}

RunEvaluation::Found RunEvaluation::found(const CheckpointReader& checkpoint) {
  return {checkpoint.path(), checkpoint.state().step, checkpoint.manifest(), checkpoint.files(), checkpoint.has("ema")};
}

torch::Dtype RunEvaluation::loss_dtype(const TrainConfig& trained) const {
  return parse_dtype(root_.model.dtype == "auto" ? trained.model.dtype : root_.model.dtype, session_.device);
}

const RunEvaluation::RunSettings& RunEvaluation::settings_of(const Found& checkpoint) {
  const auto& manifest = checkpoint.manifest;
  if (is_of_vae(manifest))
    fail(Exit::usage, "{} is of an autoencoder, which paints nothing by itself", checkpoint.path.string());
  const auto& moved = root_.model.pipeline;
  auto key =
      moved.value_or(manifest.at("pipeline").get<std::string>()) + "\n" + manifest.at("config").get<std::string>();
  if (settings_ && settings_->key == key) return *settings_;
  auto trained = trained_config(manifest, checkpoint.path);
  const auto folder = pipeline_of(manifest, checkpoint.path, moved);
  ScoredModel scored;
  if (root_.measures_pictures())
    scored.painting = painting_of_run(root_, trained, folder, evaluation_.arithmetic().dtype);
  if (trained.data.validation)
    scored.loss = loss_protocol(trained, folder.scheduler(), dtype_name(loss_dtype(trained)));
  return settings_.emplace(RunSettings{std::move(key), std::move(trained), std::move(scored)});
}

Json RunEvaluation::about(const Found& checkpoint) {
  const auto& scored = settings_of(checkpoint).scored;
  const auto weights = weights_to_score(root_.evaluate.weights, checkpoint.has_ema, checkpoint.path);
  Json model = {
      {"step", checkpoint.step}, {"checkpoint", checkpoint.path.string()}, {"digest", digest_of(checkpoint.files)}};
  if (checkpoint.has_ema) model["weights"] = weights;
  model["protocol"] = evaluation_.protocol(scored);
  return model;
}

void check_checkpoint(const Session& session, const EvaluateRoot& root, const EvaluateJob& job) {
  on_root(session.world.group(), [&] {
    if (!fs::is_directory(job.path)) {
      if (job.is_of_one_checkpoint) fail(Exit::io, "--checkpoint {}: no such folder", job.path.string());
      fail(Exit::io, "--run {}: no such folder", job.path.string());
    }
    auto path = job.path;
    if (!job.is_of_one_checkpoint) {
      const auto names = list_checkpoints(job.path);
      if (names.empty()) return;
      path = names.front().path;
    }
    bool has_ema = true;
    try {
      has_ema = CheckpointManifest::parse(CheckpointManifest::read(path), path).has("ema");
    } catch (const Error&) {  // whoever opens it passes it over, or says what is wrong
    }
    (void)weights_to_score(root.evaluate.weights, has_ema, path);
  });
}

CheckpointReader RunEvaluation::find_one() const {
  if (job_.is_of_one_checkpoint) return CheckpointReader::open(job_.path, world());
  if (auto newest = find_checkpoint(job_.path, world())) return *newest;
  throw AgreedError(Error(Exit::io, fmt::format("{} has no checkpoint yet", job_.path.string()),
                          "checkpoint.every says how often a run saves; --follow waits for the first one"),
                    world());
}

void RunEvaluation::score_one() {
  const auto checkpoint = find_one();
  Json model;
  const bool is_scored = broadcast_from_root(world(), [&] {
    model = about(found(checkpoint));
    return evaluation_.is_scored(model);
  });
  if (is_scored) {
    if (session_.is_root()) log::info("{} is scored already", name_of(model));
    return;
  }
  make_networks(checkpoint);
  load_weights(checkpoint);
  score_loaded(checkpoint);
}

void RunEvaluation::follow() {
  CheckpointWatch watch(
      session_, job_.path, root_.evaluate.patience.count,
      [&](const CheckpointName& name, const CheckpointManifest& manifest) {
        return evaluation_.is_scored(about({name.path, name.step, manifest.json, manifest.files, manifest.has("ema")}));
      });
  while (const auto path = watch.next()) {
    std::optional<CheckpointReader> checkpoint;
    if (!try_read(*path, watch, [&] { checkpoint = CheckpointReader::open(*path, world()); })) continue;
    if (!try_make_networks(*checkpoint, watch)) continue;
    if (try_read(*path, watch, [&] { load_weights(*checkpoint); })) try_to_score(*checkpoint, watch);
  }
}

// What fails by the checkpoint costs this one.
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

bool RunEvaluation::is_newest(const CheckpointReader& checkpoint) const {
  return broadcast_from_root(world(), [&] {
    const auto names = list_checkpoints(job_.path);
    return names.empty() || names.front().step <= checkpoint.state().step;
  });
}

// What fails by the model's folder or the data that the newest one was trained with would cost all that come. An older
// one may have had others, which are gone.
bool RunEvaluation::try_make_networks(const CheckpointReader& checkpoint, CheckpointWatch& watch) {
  try {
    make_networks(checkpoint);
    return true;
  } catch (const AgreedError& error) {
    const bool all_know = error.group().size() == world().size();
    if (error.exit() == Exit::requeue || !all_know || is_newest(checkpoint)) throw;
    if (session_.is_root()) log::warning("{} is passed over: {}", checkpoint.path().string(), error.what());
    watch.pass_over(checkpoint.path());
    return false;
  }
}

// With the first checkpoint, and again where a later one was trained by other settings.
void RunEvaluation::make_networks(const CheckpointReader& checkpoint) {
  on_all(world(), [&] { (void)about(found(checkpoint)); });
  if (made_by_ == settings_->key) return;
  auto trained = settings_->trained;
  auto arithmetic = evaluation_.arithmetic();
  const auto of_loss = loss_dtype(trained);
  if (!root_.measures_pictures()) arithmetic.dtype = of_loss;
  made_by_.clear();
  loss_.reset();
  loss_unet_.reset();
  unet_.reset();
  painter_.reset();
  PipelineFolder pipeline;
  on_root(world(), [&] {
    check_encoders(checkpoint, pipeline_of(checkpoint, root_.model.pipeline), /*allow_changes=*/false,
                   "put these back as they were, or export the checkpoint with allow_changes=true, which takes what is "
                   "there now, and evaluate that with --pipeline");
  });
  on_all(world(), [&] {
    pipeline = pipeline_of(checkpoint, root_.model.pipeline);
    if (root_.measures_pictures())
      painter_.emplace(checkpoint, pipeline, tokenizer_to_paint_with(root_, trained), arithmetic);
    unet_ = painter_ ? painter_->unet() : empty_unet_of(checkpoint, pipeline, arithmetic);
    if (trained.data.validation && arithmetic.dtype != of_loss)
      loss_unet_ = empty_unet_of(checkpoint, pipeline, {session_.device, of_loss});
    if (session_.is_root() && !trained.data.validation && !root_.measures_pictures())
      log::warning("evaluate.metrics is empty, and {} has no data.validation: there is nothing to measure",
                   job_.path.string());
    trained.run.dir.value = evaluation_.folder().string();
  });
  if (trained.data.validation) loss_.emplace(session_, trained, pipeline, loss_unet_.value_or(*unet_), of_loss);
  made_by_ = settings_->key;
}

void RunEvaluation::load_weights(const CheckpointReader& checkpoint) {
  on_all(world(), [&] {
    const auto chosen = weights_to_score(root_.evaluate.weights, checkpoint.has("ema"), checkpoint.path());
    const auto* kind = chosen == "ema" ? "ema" : "weights";
    load_weights_of(checkpoint, kind, *unet_);
    if (loss_unet_) load_weights_of(checkpoint, kind, *loss_unet_);
  });
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
  const auto model = about(found(checkpoint));
  painter_ ? evaluation_.score_model(model, *painter_, loss) : evaluation_.score_loss(model, loss);
}

}  // namespace millrace
