#include "evaluate/run_loss.h"

#include <algorithm>

#include "launch/broadcast_plan.h"
#include "millrace/nn/device.h"
#include "train/validation_set.h"

namespace millrace {
namespace {

constexpr int micro_batch_of_auto = 8;  // forward alone, on whatever device this is

// As many ranks as there are stripes to share; each reads for itself.
Roles share_stripes(const Session& session, const TrainConfig& config) {
  auto data = config.data;
  data.train = *config.data.validation;
  data.stripes = {};
  const auto& world = session.world.group();
  int stripes = 0;
  try {
    stripes = static_cast<int>(broadcast_data_plan(world, data.train, data, config.batch.global).stripes.stripes);
  } catch (const AgreedError& error) {
    const Error cause(
        error.exit(), fmt::format("data.validation of the run: {}", error.what()),
        error.hint().empty() ? "its paths hold from the folder that the run was started in" : error.hint());
    throw AgreedError(cause, error.group());
  }
  return all_in_one_roles(std::min(world.size(), stripes));
}

}  // namespace

RunLoss::RunLoss(const Session& session, const TrainConfig& config, const PipelineFolder& pipeline,
                 UNet2DConditionModel unet, torch::Dtype dtype)
    : session_(session) {
  const auto& world = session.world.group();
  const auto roles = share_stripes(session, config);
  const auto plan = plan_validation(session, config, pipeline, roles, std::nullopt);
  const bool takes_part = roles.trains(world.rank());
  part_ = world.split(takes_part ? 0 : 1, world.rank());
  std::vector<EncodedBatch> batches;
  if (takes_part)
    batches = share_validation({.session = session,
                                .plan = *plan,
                                .pipeline = pipeline,
                                .roles = roles,
                                .of_role = part_,
                                .limit_seconds = config.guard.hang_seconds()});
  if (told_to_stop(world)) throw AgreedError({Exit::requeue, "told to stop while encoding data.validation"}, world);
  if (!takes_part) return;
  const auto vae = AutoencoderKLConfig::from_json(pipeline.config("vae"));
  Validation::Options options;
  options.objective = config.objective;
  options.samples = std::int64_t{plan->batches} * plan->global_batch;
  options.micro_batch = config.batch.micro.value_or(micro_batch_of_auto);
  if (plan->input.encoding.shape.has_tokens()) {
    const auto encode_dtype = parse_dtype(config.encode.dtype, session.device);
    options.text_encoder = TextEncoder(pipeline.load_text_encoder(session.device, encode_dtype), session.device,
                                       encode_dtype, options.micro_batch);
  }
  options.latent_scale = vae.latent_scale();
  options.device = session.device;
  options.dtype = dtype;
  validation_.emplace(std::move(unet), NoiseSchedule(trained_scheduler(pipeline.scheduler(), config.objective)),
                      std::move(batches), std::move(options));
}

ValidationLoss RunLoss::measure() {
  const auto& world = session_.world.group();
  std::optional<ValidationLoss> loss;
  if (validation_) loss = validation_->loss(part_, [&] { return told_to_stop(part_); });
  if (world.any(validation_ && !loss))
    throw AgreedError({Exit::requeue, "told to stop while measuring the loss; the same command measures it again"},
                      world);
  return loss.value_or(ValidationLoss{});
}

}  // namespace millrace
