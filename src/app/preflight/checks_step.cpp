#include <algorithm>
#include <cmath>

#include "millrace/comm/agree.h"
#include "millrace/core/hash.h"
#include "millrace/diffusion/noise_schedule.h"
#include "millrace/diffusion/objective.h"
#include "millrace/io/json.h"
#include "millrace/models/initialize.h"
#include "millrace/models/weights.h"
#include "millrace/nn/device.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/sharded_optimizer.h"
#include "preflight/checks.h"

namespace millrace::preflight {
namespace {

using nlohmann::json;

constexpr double build_seconds = 240, compute_seconds = 240, update_seconds = 120;

// What a trainer needs for the same step again and again.
class Trainer {
 public:
  Trainer(const Session& session, const TrainConfig& config, const Plan& plan)
      : session_(session),
        config_(config),
        plan_(plan),
        dtype_(parse_dtype(config.model.dtype, session.device)),
        schedule_(trained_scheduler(plan.pipeline.scheduler(), config.objective)) {}

  // Works alone.
  void build() {
    const auto& c = config_;
    unet_ = make_unet(c.model.unet.config ? read_json_object(*c.model.unet.config) : plan_.pipeline.config("unet"),
                      c.run.seed);
    if (c.model.unet.init == ModelConfig::Init::pretrained)
      load_weights(*unet_, plan_.pipeline.component("unet"), diffusers_stem);
    unet_->train();
    unet_->set_gradient_checkpointing(c.model.gradient_checkpointing);
  }

  // Talks to the other trainers.
  void share() {
    auto originals = weights_of(*unet_);
    unet_->to(session_.device, dtype_);
    const auto& trainers = plan_.of_role;
    const auto shards = plan_shards(config_.parallel, trainers.size(), session_.world.local_size());
    model_.emplace(*unet_, blocks_of(parameter_blocks(*unet_)), shards, config_.parallel, trainers);
    optimizer_.emplace(*model_, config_.optim, config_.ema);
    optimizer_->start_from(std::move(originals));
    for (const auto& shard : optimizer_->state().at("weights"))
      start_.push_back(shard.to(torch::kCPU, shard.scalar_type(), false, /*copy=*/true));
  }

  // Bytes of all numbers of the optimizer's state, over all trainers.
  std::uint64_t checkpoint_bytes() const {
    std::int64_t elements = 0;
    for (const auto& parameter : model_->layout().parameters) elements += parameter.elements();
    return static_cast<std::uint64_t>(elements) * sizeof(float) * optimizer_->state().size();
  }

  // The loss of one micro-batch, the same samples on every trainer. Works alone.
  double compute() {
    const int samples = config_.batch.micro;
    const auto vae = AutoencoderKLConfig::from_json(plan_.pipeline.config("vae"));
    const auto& shape = plan_.encoding.shape;
    auto generator = at::detail::createCPUGenerator(config_.run.seed);
    std::vector<std::int64_t> moments_shape{samples}, text_shape{samples};
    moments_shape.insert(moments_shape.end(), shape.moments.begin(), shape.moments.end());
    text_shape.insert(text_shape.end(), shape.text.begin(), shape.text.end());
    const auto moments = torch::randn(moments_shape, generator).to(torch::kHalf),
               text = torch::randn(text_shape, generator).to(torch::kHalf);
    std::vector<RngKey> keys;
    for (int i = 0; i < samples; ++i) keys.push_back({config_.run.seed, static_cast<std::uint64_t>(i), 0});
    const auto input = make_step_input(moments, text, text[0], keys, vae.scaling_factor, vae.shift_factor.value_or(0),
                                       schedule_, config_.objective, session_.device);
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
    synchronize(session_.device);
  }

  // Of the weights, which every trainer holds whole.
  std::string digest_of_weights() const {
    Hasher128 hasher;
    for (const auto& parameter : unet_->parameters()) add(hasher, parameter);
    return hasher.digest().hex();
  }

  // Of this trainer's part of the optimizer's state.
  std::string digest_of_state() const {
    Hasher128 hasher;
    for (const auto& [kind, shards] : optimizer_->state())
      for (const auto& shard : shards) add(hasher, shard);
    return hasher.digest().hex();
  }

  // To where it began. Talks to the other trainers.
  void go_back() {
    const torch::NoGradGuard no_grad;
    for (const auto& [kind, shards] : optimizer_->state())
      for (std::size_t bucket = 0; bucket < shards.size(); ++bucket) {
        auto shard = shards[bucket];
        kind == "weights" || kind == "ema" ? shard.copy_(start_[bucket]) : shard.zero_();
      }
    optimizer_->set_updates(0, 0);
    optimizer_->publish_weights();
  }

 private:
  static void add(Hasher128& hasher, const torch::Tensor& tensor) {
    const auto host = tensor.detach().cpu().contiguous();
    hasher.update(host.data_ptr(), host.nbytes());
  }

  const Session& session_;
  const TrainConfig& config_;
  const Plan& plan_;
  const torch::Dtype dtype_;
  const NoiseSchedule schedule_;
  UNet2DConditionModel unet_{nullptr};
  std::optional<ShardedModel> model_;
  std::optional<ShardedAdamW> optimizer_;
  std::vector<torch::Tensor> start_;  // this trainer's master weights on the host, per bucket
};

// The answers of a question, on rank 0, and how long the slowest took; others that cannot go on end the checkup.
class Stage {
 public:
  Stage(Checkup& checkup, bool takes_part, double seconds, const std::function<json()>& work)
      : answers_(checkup.ask("step", seconds, [&]() -> json {
          if (!takes_part) return nullptr;
          const Stopwatch watch;
          json facts = work();
          facts["seconds"] = watch.seconds();
          return facts;
        })) {
    Row failed;
    if (checkup.is_root()) failed = {.detail = "", .suspects = failed_alone(answers_), .ends = true};
    if (checkup.tell(!failed.suspects.empty()).get<bool>()) checkup.conclude("step", failed);
  }

  template <class T>
  std::vector<T> facts(const char* key, std::vector<int>& ranks) const {
    return facts_of<T>(answers_, key, ranks);
  }
  double slowest() const {
    std::vector<int> ranks;
    return std::ranges::max(facts<double>("seconds", ranks));
  }

 private:
  std::vector<Answer> answers_;
};

void judge_losses(const Stage& stage, std::vector<Suspicion>& suspects) {
  constexpr double tolerance = 1e-3;  // of numbers that different kinds of GPUs compute
  std::vector<int> ranks;
  std::vector<double> losses;
  for (const auto& text : stage.facts<std::string>("loss", ranks)) losses.push_back(std::stod(text));
  auto finite = losses;
  std::erase_if(finite, [](double loss) { return !std::isfinite(loss); });
  if (finite.empty()) fail(Exit::numerics, "the loss of a step on random samples is {} on every trainer", losses[0]);
  const double usual = median(finite);
  for (std::size_t i = 0; i < losses.size(); ++i)
    if (!(std::abs(losses[i] - usual) <= tolerance * std::abs(usual)))
      suspects.push_back(
          {ranks[i], fmt::format("its loss is {:.6g}, {:.6g} elsewhere on the same samples", losses[i], usual)});
}

void judge_weights(const Stage& stage, std::vector<Suspicion>& suspects) {
  std::vector<int> ranks;
  const auto digests = stage.facts<std::string>("weights", ranks);
  std::string usual;
  for (const auto i : odd_ones(digests, usual))
    suspects.push_back({ranks[i], "its weights differ from the others' after the same step"});
}

// Whether the same step gave the same numbers twice. Kernels of GPUs may add in any order.
bool judge_repetition(const Stage& first, const Stage& second, bool on_gpus, std::vector<Suspicion>& suspects) {
  std::vector<int> ranks;
  const auto before = first.facts<std::string>("state", ranks), after = second.facts<std::string>("state", ranks);
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (before[i] != after[i] && !on_gpus)
      suspects.push_back({ranks[i], "the same step from the same weights gave other numbers the second time"});
  return before == after;
}

}  // namespace

std::uint64_t check_step(Checkup& checkup, const Session& session, const TrainConfig& config, const Plan& plan) {
  const bool trains = plan.trains(checkup.world().rank());
  std::optional<Trainer> trainer;
  const Stage build(checkup, trains, build_seconds, [&]() -> json {
    trainer.emplace(session, config, plan);
    trainer->build();
    return json::object();
  });
  const Stage share(checkup, trains, update_seconds, [&]() -> json {
    trainer->share();
    return {{"checkpoint", trainer->checkpoint_bytes()}};
  });
  const auto compute = [&]() -> json { return {{"loss", fmt::format("{}", trainer->compute())}}; };
  const auto update = [&]() -> json {
    trainer->update();
    return {{"weights", trainer->digest_of_weights()},
            {"state", trainer->digest_of_state()},
            {"memory", peak_memory_bytes(session.device)}};
  };
  const Stage compute_first(checkup, trains, compute_seconds, compute),
      update_first(checkup, trains, update_seconds, update);
  const Stage back(checkup, trains, update_seconds, [&]() -> json {
    trainer->go_back();
    return json::object();
  });
  const Stage compute_again(checkup, trains, compute_seconds, compute),
      update_again(checkup, trains, update_seconds, update);

  Row row;
  std::uint64_t checkpoint_bytes = 0;
  on_root(checkup.group(), [&] {
    std::vector<int> ranks;
    checkpoint_bytes = share.facts<std::uint64_t>("checkpoint", ranks).front();
    const auto memory = std::ranges::max(update_again.facts<std::uint64_t>("memory", ranks));
    row.detail = fmt::format(
        "micro-batch of {} in {}, {} update in {} (first time {}); model made in {}; peak memory {}",
        config.batch.micro, describe_seconds(compute_again.slowest()), to_string(config.parallel.strategy),
        describe_seconds(update_again.slowest()), describe_seconds(compute_first.slowest() + update_first.slowest()),
        describe_seconds(build.slowest() + share.slowest()), format_bytes(memory));
    judge_losses(compute_first, row.suspects);
    judge_weights(update_first, row.suspects);
    if (row.suspects.empty()) judge_weights(update_again, row.suspects);
    const bool same = judge_repetition(update_first, update_again, session.device.is_cuda(), row.suspects);
    if (row.suspects.empty())
      row.detail +=
          fmt::format("\nweights equal on {} {}, {}", ranks.size(), ranks.size() == 1 ? "trainer" : "trainers",
                      same ? "the same both times" : "not the same both times (GPUs may add in another order)");
  });
  checkup.conclude("step", row);
  return checkpoint_bytes;
}

}  // namespace millrace::preflight
