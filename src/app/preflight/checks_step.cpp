#include "millrace/diffusion/noise_schedule.h"

#include <algorithm>
#include "millrace/diffusion/objective.h"
#include "millrace/nn/device.h"
#include "millrace/nn/layers.h"
#include "millrace/nn/weights.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/sharded_optimizer.h"
#include "millrace/train/predict.h"
#include "preflight/checks.h"
#include "run/disk_space.h"
#include "train/networks.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

// The loss of a micro-batch of random samples, the same on every trainer, with its graph.
torch::Tensor compute_loss(const Session& session, const TrainPlan& plan, UNet2DConditionModel& unet,
                           std::optional<TextEncoder>& text_encoder) {
  const auto& c = plan.config;
  const auto vae = AutoencoderKLConfig::from_json(plan.pipeline.config("vae"));
  auto generator = at::detail::createCPUGenerator(c.run.seed);
  const auto random = [&](std::vector<std::int64_t> shape) {
    shape.insert(shape.begin(), plan.micro_batch);
    return torch::randn(shape, generator).to(torch::kHalf);
  };
  const auto moments = random(plan.input.encoding.shape.moments);
  const auto text = text_encoder ? null_text_of(*text_encoder, plan).expand({plan.micro_batch, -1, -1})
                                 : random({token_count, plan.input.encoding.text_width});
  std::vector<RngKey> keys;
  for (int i = 0; i < plan.micro_batch; ++i) keys.push_back({c.run.seed, static_cast<std::uint64_t>(i), 0});
  const NoiseSchedule schedule(plan.scheduler);
  const auto input = make_step_input(moments, text, text[0], keys, uniform_timesteps(keys, schedule.size()),
                                     vae.latent_scale(), schedule, c.objective, session.device);
  const auto prediction = predict(unet, input, parse_dtype(c.model.dtype, session.device));
  return diffusion_loss(prediction, input).mean();
}

void judge_losses(const Answers& answers, Row& row) {
  constexpr double tolerance = 1e-3;  // of numbers that different kinds of GPUs compute
  const auto losses = numbers_of(answers, "loss");
  const auto usual = usual_number(losses);
  if (!usual) fail(Exit::numerics, "the loss of a step on random samples is {} on every trainer", losses[0].value);
  for (const auto& [rank, loss] : far_from(losses, *usual, tolerance))
    row.suspect(rank, "its loss is {:.6g}, {:.6g} elsewhere on the same samples", loss, *usual);
}

Row judge_step(const TrainPlan& plan, const Answers& built, const Answers& computed, const Answers& updated) {
  const auto slowest = [](const Answers& answers) {
    return describe_seconds(most(facts_of<double>(answers, "seconds")).value);
  };
  const auto digests = facts_of<std::string>(updated, "weights");
  Row row{.detail =
              fmt::format("model in {}, first micro-batch of {} in {}, {} update in {}; peak memory {}", slowest(built),
                          plan.micro_batch, slowest(computed), to_string(plan.config.parallel.strategy),
                          slowest(updated), format_bytes(most(facts_of<std::uint64_t>(updated, "memory")).value))};
  judge_losses(computed, row);
  for (const auto& odd : odd_ones(digests))
    row.suspect(odd.rank, "its weights differ from the others' after the same step");
  if (row.suspects.empty() && digests.size() > 1)
    row.detail += fmt::format("\nweights equal on {} trainers", digests.size());
  return row;
}

}  // namespace

std::uint64_t check_step(Checkup& checkup, const Session& session, const TrainPlan& plan, const Group& trainers) {
  constexpr double step_seconds = 180;  // for all of it
  const auto& c = plan.config;
  const Stopwatch since_start;
  const auto demand = [&](const Checkup::Work& work) {  // of trainers
    return checkup.demand("step", std::max(1.0, step_seconds - since_start.seconds()),
                          [&] { return plan.roles.trains(checkup.rank()) ? work() : json(); });
  };
  UNet2DConditionModel unet{nullptr};
  std::optional<TextEncoder> text_encoder;
  std::map<std::string, torch::Tensor> originals;
  const auto built = demand([&]() -> json {
    unet = make_unet_for_run(plan, checkup.rank() == plan.roles.trainers.front());
    originals = weights_of(*unet);
    nn::place(*unet, session.device,
              parse_dtype(c.model.dtype, session.device),  // here, where nobody waits for a full GPU
              c.model.channels_last.value);
    text_encoder = load_trainers_text_encoder(Group(), session, plan);
    return {{"checkpoint", checkpoint_bytes(*unet, c.ema.enabled)}};
  });
  std::optional<ShardedModel> model;
  std::optional<ShardedAdamW> optimizer;
  demand([&] {
    model.emplace(*unet, execution_order(*unet), plan.shards, c.parallel, trainers);
    optimizer.emplace(*model, c.optim, c.ema);
    optimizer->start_from(std::move(originals));
    return json::object();
  });
  // backward() reduces gradients: where it fails on one rank the others wait until the time limit.
  const auto computed = demand([&]() -> json {
    model->begin_gradients(1);
    const auto loss = compute_loss(session, plan, unet, text_encoder);
    (loss / trainers.size()).backward();
    return {{"loss", number_text(loss.item<double>())}};
  });
  const auto updated = demand([&]() -> json {
    model->finish_gradients();
    optimizer->step(c.optim.lr, clip_factor(c.optim.clip, model->gradient_norm()));
    synchronize(session.device);
    return {{"weights", model->digest()}, {"memory", peak_memory_bytes(session.device)}};
  });
  checkup.conclude([&] { return judge_step(plan, built, computed, updated); });
  return facts_of<std::uint64_t>(built, "checkpoint")[0].value;
}

}  // namespace millrace::preflight
