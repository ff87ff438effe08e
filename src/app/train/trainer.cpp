#include "train/trainer.h"

#include <algorithm>

#include "millrace/checkpoint/restore.h"
#include "millrace/comm/fault.h"
#include "millrace/core/phase.h"
#include "millrace/core/startup.h"
#include "millrace/nn/device.h"
#include "millrace/nn/gpu_watch.h"
#include "train/start_table.h"
#include "train/training_pass.h"

namespace millrace {

Trainer::Trainer(const Session& session, const TrainPlan& plan, LoadedNetworks& networks, torch::Tensor null_text,
                 std::vector<EncodedBatch> validation, const Group& trainers, const RunLease& lease)
    : session_(session),
      plan_(plan),
      trainers_(trainers),
      lease_(lease),
      vae_(AutoencoderKLConfig::from_json(plan.pipeline.config("vae"))),
      schedule_(plan.scheduler),
      dtype_(parse_dtype(plan.config.model.dtype, session.device)),
      unet_(networks.unet),
      ema_start_(std::move(networks.ema)),
      text_encoder_(std::move(networks.text_encoder)),
      null_text_(std::move(null_text)),
      validation_batches_(std::move(validation)) {
  if (!plan.pictures.empty()) painter_.emplace(make_painter(networks));
}

LoopResult Trainer::train(const Start& start, ParcelReceiver& receiver) {
  load(start);
  startup::done(start.checkpoint ? "restore" : "shards");
  const auto& c = plan_.config;
  const auto loop = c.loop(plan_.micro_batch, identity_of_losses(start.identity));
  auto task = make_task(start, receiver);
  return run_loop(
      {.task = task,
       .model = training_->model,
       .optimizer = training_->optimizer,
       .trainers = trainers_,
       .config = loop,
       .optim = c.optim,
       .data = plan_.input.data,
       .max_bad_share = c.data.max_bad_share,
       .device = session_.device,
       .manifest_extra = start.identity.to_json(),
       .on_silent_producer = [this](const Overdue& overdue, const Error& error) { report_silent(overdue, error); },
       .trainer_ranks = on_hosts(session_, plan_.roles.trainers),
       .producer_ranks = on_hosts(session_, plan_.roles.producers),
       .gpu_uuid = gpu_uuid(session_.device),
       .lease = &lease_,
       .resumed_from = start.path(),
       .validation = validation_ ? &*validation_ : nullptr,
       .painter = painter_ ? &*painter_ : nullptr,
       .cuda_graphs = plan_cuda_graphs(c, plan_.unet_config(), plan_.shards, session_.device).used},
      state_with_ledger(start, trainers_));
}

void Trainer::load(const Start& start) {
  if (training_) {
    restore(*start.checkpoint, training_->optimizer);
  } else {
    build(start);
  }
}

void Trainer::build(const Start& start) {
  const auto& c = plan_.config;
  training_.emplace(*unet_, execution_order(*unet_),
                    ShardedTraining::Options{plan_.shards, c.parallel, c.optim, c.ema, session_.device, dtype_,
                                             c.model.channels_last.value},
                    trainers_, start.checkpoint);
  if (auto ema = std::exchange(ema_start_, {}))
    training_->optimizer.start_ema_from(std::move(ema->weights), ema->updates);
  if (plan_.validation) validation_ = make_validation();
  if (trainers_.is_root()) log_planned_memory(session_, plan_);
}

DiffusionTask Trainer::make_task(const Start& start, ParcelReceiver& receiver) const {
  const int self = trainers_.rank();
  const DiffusionTask::Options options{
      .objective = plan_.config.objective,
      .seed = plan_.config.run.seed,
      .global_batch = plan_.config.batch.global,
      .first_place =
          static_cast<int>(plan_.input.routing.stripes_of_trainer(self).front()) * plan_.input.samples_per_stripe,
      .step = start.state.step,
      .latent_scale = vae_.latent_scale(),
      .null_text = null_text_,
      .text_encoder = text_encoder_,
      .device = session_.device,
      .dtype = dtype_,
      .producers = plan_.input.routing.producers_serving(self),
      .slots = HandoffSize().slots};
  BatchReceiver batches(receiver, plan_.input.routing.producer_places(self), plan_.input.samples_per_stripe,
                        /*pinned=*/session_.device.is_cuda());
  return {unet_, schedule_, std::move(batches), receiver, options};
}

Validation Trainer::make_validation() {
  const Validation::Options options{.every = plan_.config.validation.every,
                                    .objective = plan_.config.objective,
                                    .samples = std::int64_t{plan_.validation->batches} * plan_.validation->global_batch,
                                    .micro_batch = plan_.micro_batch,
                                    .text_encoder = text_encoder_,
                                    .latent_scale = vae_.latent_scale(),
                                    .device = session_.device,
                                    .dtype = dtype_};
  return {unet_, schedule_, std::move(validation_batches_), options};
}

// Of the size that is trained; not more at once than a micro-batch holds, with guidance twice as many rows as pictures,
// and no more than the VAE paints beside it.
PicturePainter Trainer::make_painter(LoadedNetworks& networks) const {
  const auto& c = plan_.config;
  PicturePainter::Options options;
  options.every = c.samples.every;
  options.sampling = *plan_.sampling;
  for (const auto& picture : plan_.pictures) options.prompts.push_back(picture.prompt);
  const auto side = vae_.latent_side(c.transform.resolution);
  options.latent_shape = {vae_.latent_channels, side, side};
  options.batch_size = std::clamp(plan_.micro_batch / (options.sampling.is_guided() ? 2 : 1), 1, 8);
  options.forward_is_collective = plan_.shards.splits_parameters();
  return {unet_, std::exchange(networks.pictures_vae, nullptr), std::exchange(networks.pictures_text, {}), options};
}

// A producer that sends nothing may be unable to say so itself.
void Trainer::report_silent(const Overdue& overdue, const Error& error) const {
  const int rank = plan_.roles.producers[overdue.producer];
  fault::write_about({plan_.config.run.dir.value, rank, session_.world.hosts()[rank], "producer"}, error, "silent",
                     phase::step);
}

}  // namespace millrace
