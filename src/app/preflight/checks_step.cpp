#include <cmath>

#include "millrace/core/hash.h"
#include "millrace/diffusion/noise_schedule.h"
#include "millrace/diffusion/objective.h"
#include "millrace/models/initialize.h"
#include "millrace/models/weights.h"
#include "millrace/nn/device.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/sharded_optimizer.h"
#include "preflight/checks.h"
#include "run/run_folder.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr double step_seconds = 180;  // for all of it

// One step of a trainer, on random samples that are the same everywhere.
class Trainer {
 public:
  Trainer(const TrainConfig& config, const Plan& plan)
      : config_(config),
        plan_(plan),
        device_(plan.session.device),
        dtype_(parse_dtype(config.model.dtype, device_)),
        schedule_(trained_scheduler(plan.pipeline.scheduler(), config.objective)),
        unet_(make_unet(plan.unet, config.run.seed)) {
    if (config.model.unet.init == ModelConfig::Init::pretrained)
      load_weights(*unet_, plan.pipeline.component("unet"), diffusers_stem);
    unet_->train();
    unet_->set_gradient_checkpointing(config.model.gradient_checkpointing);
    originals_ = weights_of(*unet_);
    unet_->to(device_, dtype_);  // here, where nobody waits for a GPU that is full
  }

  std::uint64_t bytes_of_checkpoint() const { return checkpoint_bytes(*unet_, config_.ema.enabled); }

  // Talks to the other trainers.
  void share() {
    const auto& world = plan_.session.world;
    const auto shards = plan_shards(config_.parallel, plan_.of_role.size(), world.local_size());
    model_.emplace(*unet_, blocks_of(parameter_blocks(*unet_)), shards, config_.parallel, plan_.of_role);
    optimizer_.emplace(*model_, config_.optim, config_.ema);
    optimizer_->start_from(std::move(originals_));
  }

  // The loss of one micro-batch. Works alone.
  double compute() {
    const int samples = config_.batch.micro;
    const auto vae = AutoencoderKLConfig::from_json(plan_.pipeline.config("vae"));
    auto generator = at::detail::createCPUGenerator(config_.run.seed);
    const auto random = [&](const auto& shape) {
      std::vector<std::int64_t> of_batch{samples};
      of_batch.insert(of_batch.end(), shape.begin(), shape.end());
      return torch::randn(of_batch, generator).to(torch::kHalf);
    };
    const auto moments = random(plan_.encoding.shape.moments), text = random(plan_.encoding.shape.text);
    std::vector<RngKey> keys;
    for (int i = 0; i < samples; ++i) keys.push_back({config_.run.seed, static_cast<std::uint64_t>(i), 0});
    const auto input = make_step_input(moments, text, text[0], keys, vae.scaling_factor, vae.shift_factor.value_or(0),
                                       schedule_, config_.objective, device_);
    model_->zero_gradients();
    const auto prediction = unet_->forward(input.noisy.to(dtype_), input.timesteps, input.text.to(dtype_));
    const auto loss = diffusion_loss(prediction, input).mean();
    loss.backward();
    return loss.item<double>();
  }

  // Talks to the other trainers.
  void update() {
    model_->reduce_gradients(1.0 / plan_.of_role.size());
    optimizer_->step(config_.optim.lr, clip_factor(config_.optim.clip, model_->gradient_norm()));
    synchronize(device_);
  }

  // Of the weights, which every trainer holds whole.
  std::string digest() const {
    Hasher128 hasher;
    for (const auto& parameter : unet_->parameters()) {
      const auto host = parameter.detach().cpu().contiguous();
      hasher.update(host.data_ptr(), host.nbytes());
    }
    return hasher.digest().hex();
  }

 private:
  const TrainConfig& config_;
  const Plan& plan_;
  const torch::Device device_;
  const torch::Dtype dtype_;
  const NoiseSchedule schedule_;
  UNet2DConditionModel unet_;
  std::map<std::string, torch::Tensor> originals_;
  std::optional<ShardedModel> model_;
  std::optional<ShardedAdamW> optimizer_;
};

void judge_losses(const Answers& answers, std::vector<Suspicion>& suspects) {
  constexpr double tolerance = 1e-3;  // of numbers that different kinds of GPUs compute
  const auto texts = facts_of<std::string>(answers, "loss");
  std::vector<double> losses, finite;
  for (const auto& text : texts.values) losses.push_back(std::stod(text));
  std::ranges::copy_if(losses, std::back_inserter(finite), [](double loss) { return std::isfinite(loss); });
  if (finite.empty()) fail(Exit::numerics, "the loss of a step on random samples is {} on every trainer", losses[0]);
  const double usual = median(finite);
  for (std::size_t i = 0; i < losses.size(); ++i)
    if (!(std::abs(losses[i] - usual) <= tolerance * std::abs(usual)))
      suspects.push_back(
          {texts.ranks[i], fmt::format("its loss is {:.6g}, {:.6g} elsewhere on the same samples", losses[i], usual)});
}

Row judge_step(const TrainConfig& config, const Answers& build, const Answers& computed, const Answers& updated) {
  const auto slowest = [](const Answers& answers) {
    return describe_seconds(facts_of<double>(answers, "seconds").most().value);
  };
  const auto digests = facts_of<std::string>(updated, "weights");
  const auto trainers = digests.ranks.size();
  Row row{.detail =
              fmt::format("model in {}, first micro-batch of {} in {}, {} update in {}; peak memory {}", slowest(build),
                          config.batch.micro, slowest(computed), to_string(config.parallel.strategy), slowest(updated),
                          format_bytes(facts_of<std::uint64_t>(updated, "memory").most().value))};
  judge_losses(computed, row.suspects);
  for (const auto& odd : odd_ones(digests.values))
    row.suspects.push_back({digests.ranks[odd.position], "its weights differ from the others' after the same step"});
  if (row.suspects.empty() && trainers > 1)
    row.detail += fmt::format("\nweights equal on {} trainers; gradients travel through MPI", trainers);
  return row;
}

}  // namespace

std::uint64_t check_step(Checkup& checkup, const TrainConfig& config, const Plan& plan) {
  const Stopwatch since_start;
  // Of trainers: what they find out, and how long it took.
  const auto demand = [&](const auto& work) {
    return checkup.demand("step", std::max(1.0, step_seconds - since_start.seconds()), [&]() -> json {
      if (!plan.trains(checkup.rank())) return nullptr;
      const Stopwatch watch;
      json facts = work();
      facts["seconds"] = watch.seconds();
      return facts;
    });
  };
  std::optional<Trainer> trainer;
  const auto build = demand([&]() -> json {
    trainer.emplace(config, plan);
    return {{"checkpoint", trainer->bytes_of_checkpoint()}};
  });
  demand([&] {
    trainer->share();
    return json::object();
  });
  const auto computed = demand([&]() -> json { return {{"loss", fmt::format("{}", trainer->compute())}}; });
  const auto updated = demand([&]() -> json {
    trainer->update();
    return {{"weights", trainer->digest()}, {"memory", peak_memory_bytes(plan.session.device)}};
  });
  checkup.conclude("step", [&] { return judge_step(config, build, computed, updated); });
  return checkup.broadcast(checkup.is_root() ? json(facts_of<std::uint64_t>(build, "checkpoint").values[0]) : json(0));
}

}  // namespace millrace::preflight
