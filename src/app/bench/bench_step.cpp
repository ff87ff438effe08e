// bench step: whole optimizer steps on synthetic inputs of the given resolution.
#include <functional>

#include "bench/bench.h"
#include "millrace/core/log.h"
#include "millrace/diffusion/noise_schedule.h"
#include "millrace/diffusion/objective.h"
#include "millrace/models/initialize.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/attention.h"
#include "millrace/nn/device.h"
#include "millrace/nn/device_work.h"
#include "millrace/nn/fused.h"
#include "millrace/nn/layers.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/sharded_optimizer.h"
#include "millrace/train/passes.h"
#include "millrace/train/predict.h"
#include "train/training_pass.h"

namespace millrace {

namespace {

// On their way to the device.
struct Inputs {
  Upload moments, text;
};

struct StageSeconds {
  double input = 0, forward = 0, backward = 0, update = 0;
};

// Of one channel the difference to the target would spread over all.
void check_latent_channels(const UNet2DConditionConfig& unet, const AutoencoderKLConfig& vae) {
  if (unet.in_channels != vae.latent_channels || unet.out_channels != vae.latent_channels)
    fail(Exit::usage, "model.pipeline: the U-Net takes {} channels and predicts {}, and the VAE's latents have {}",
         unet.in_channels, unet.out_channels, vae.latent_channels);
}

// On the host, pinned as a BatchReceiver's batch is.
torch::Tensor random_halves(at::IntArrayRef shape, torch::Device device) {
  const auto numbers = torch::randn(shape).to(torch::kHalf);
  return device.is_cuda() ? numbers.pin_memory() : numbers;
}

// A trainer whose steps have one micro-batch, the same every time.
class BenchStep {
 public:
  BenchStep(const BenchConfig& config, const World& world);

  const Group& group() const { return group_; }
  void run() {
    run([](double StageSeconds::*) {});
  }
  // `bench.steps` whole steps. Those by stages are others, since each stage ends with waiting for the GPU.
  double whole_seconds();
  StageSeconds stage_seconds();
  void add_figures(BenchResult& figures, double whole, const StageSeconds& stages) const;
  StepProfile profile() {
    return profile_steps(device_, [&] { run(); });
  }

 private:
  using Ended = std::function<void(double StageSeconds::*stage)>;

  UNet2DConditionModel make_network() const;
  torch::Tensor random_moments() const;
  torch::Tensor random_text() const;
  bool plans_graphs() const;
  Inputs send_inputs() const { return {{moments_, device_}, {text_, device_}}; }
  StepInput next_input();
  torch::Tensor loss(const Passes::Tensors& inputs);
  void run(const Ended& ended);

  const BenchConfig& config_;
  const torch::Device device_;
  const torch::Dtype dtype_;
  const PipelineFolder folder_;
  const AutoencoderKLConfig vae_;
  UNet2DConditionModel unet_;
  const Group group_;
  ShardedModel model_;
  ShardedAdamW optimizer_;
  const NoiseSchedule schedule_;
  const torch::Tensor moments_, text_, null_text_;
  std::vector<RngKey> keys_;
  Inputs inputs_;
  const bool by_graphs_;
  Passes passes_;
};

BenchStep::BenchStep(const BenchConfig& config, const World& world)
    : config_(config),
      device_(resolve_device(config.run.device, world.local_rank())),
      dtype_(parse_dtype(config.model.dtype, device_)),
      folder_(PipelineFolder::open(config.model.pipeline)),
      vae_(AutoencoderKLConfig::from_json(folder_.config("vae"))),
      unet_(make_network()),
      group_(world.group().duplicate()),
      model_(*unet_, execution_order(*unet_), plan_shards(config.parallel, world.hosts()), config.parallel, group_),
      optimizer_(model_, config.optim, config.ema),
      schedule_(trained_scheduler(folder_.scheduler(), config.objective)),
      moments_(random_moments()),
      text_(random_text()),
      null_text_(upload(text_[0], device_)),
      inputs_(send_inputs()),
      by_graphs_(plans_graphs()),
      passes_(model_, by_graphs_) {
  for (int i = 0; i < config.micro_batch(); ++i) keys_.push_back({0, static_cast<std::uint64_t>(i), 0});
  if (by_graphs_ && passes_.kind_of(0, 1) == Passes::Kind::by_kernels)
    throw Error(Exit::usage, "bench step: among several ranks its one micro-batch a step is no graph",
                "model.cuda_graphs=false, or one rank");
}

UNet2DConditionModel BenchStep::make_network() const {
  auto unet = make_unet(folder_.config("unet"), /*seed=*/0);
  check_latent_channels(unet->config(), vae_);
  nn::place(*unet, device_, dtype_, config_.model.channels_last.value);
  unet->set_gradient_checkpointing(config_.model.gradient_checkpointing);
  return unet;
}

torch::Tensor BenchStep::random_moments() const {
  const auto side = vae_.latent_side(config_.transform.resolution);
  return random_halves({config_.micro_batch(), 2 * vae_.latent_channels, side, side}, device_);
}

torch::Tensor BenchStep::random_text() const {
  const auto width = CLIPTextConfig::from_json(folder_.config("text_encoder")).hidden_size;
  return random_halves({config_.micro_batch(), token_count, width}, device_);
}

bool BenchStep::plans_graphs() const {
  const auto& asked = config_.model.cuda_graphs;
  const auto graphs = plan_cuda_graphs(asked, {.device = device_,
                                               .rank = group_.rank(),
                                               .dropout = unet_->config().dropout,
                                               .fused_kernels = config_.model.fused_kernels,
                                               .shards = model_.plan(),
                                               .shows_kernels = config_.bench.profile});
  check_cuda_graphs(asked, graphs);
  return graphs.used;
}

StepInput BenchStep::next_input() {
  for (auto& key : keys_) ++key.epoch;
  return make_step_input(inputs_.moments.take(), inputs_.text.take(), null_text_, keys_,
                         uniform_timesteps(keys_, schedule_.size()), vae_.latent_scale(), schedule_, config_.objective,
                         device_);
}

torch::Tensor BenchStep::loss(const Passes::Tensors& inputs) {
  const auto step = step_input(inputs);
  const auto loss = diffusion_loss(predict(unet_, step, dtype_), step).mean();
  return group_.size() > 1 ? loss / group_.size() : loss;
}

// One step; `ended` is called after each of its stages. Its input takes the way of a DiffusionTask's: it is there when
// the step begins, and the next one sets out when forward has been started.
void BenchStep::run(const Ended& ended) {
  const auto step = next_input();
  const auto tensors = pass_inputs(step, dtype_);
  model_.begin_gradients(1);
  ended(&StageSeconds::input);
  const auto loss_of = [&](const Passes::Tensors& inputs) { return loss(inputs); };
  passes_.run(passes_.kind_of(0, 1), tensors, loss_of, [&] {
    inputs_ = send_inputs();
    ended(&StageSeconds::forward);
  });
  ended(&StageSeconds::backward);
  model_.finish_gradients();
  optimizer_.step(config_.optim.lr, clip_factor(config_.optim.clip, model_.gradient_norm()));
  ended(&StageSeconds::update);
}

double BenchStep::whole_seconds() {
  synchronize(device_);
  Stopwatch watch;
  for (int i = 0; i < config_.bench.steps; ++i) run();
  synchronize(device_);
  return watch.lap();
}

StageSeconds BenchStep::stage_seconds() {
  StageSeconds seconds;
  for (int i = 0; i < config_.bench.steps; ++i) {
    Stopwatch watch;
    run([&](double StageSeconds::*stage) {
      synchronize(device_);
      seconds.*stage += watch.lap();
    });
  }
  return seconds;
}

void BenchStep::add_figures(BenchResult& figures, double whole, const StageSeconds& stages) const {
  const int steps = config_.bench.steps;
  figures.add("steps", "steps/s", steps / whole);
  figures.add("images", "images/s", steps * config_.micro_batch() * group_.size() / whole);
  figures.add("input", "ms", 1000 * stages.input / steps);
  if (by_graphs_) {
    figures.add("pass", "ms", 1000 * (stages.forward + stages.backward) / steps);
  } else {
    figures.add("forward", "ms", 1000 * stages.forward / steps);
    figures.add("backward", "ms", 1000 * stages.backward / steps);
  }
  figures.add("update", "ms", 1000 * stages.update / steps);
}

}  // namespace

BenchResult bench_step(const BenchConfig& c, World& world) {
  BenchStep step(c, world);
  BenchResult figures("step");
  figures.set_resolution(c.transform.resolution);
  repeat(c, step.group(), [&](bool measured) {
    const double whole = step.whole_seconds();
    if (measured) step.add_figures(figures, whole, step.stage_seconds());
  });
  if (world.is_root()) {
    log::info("attention: {}", nn::attention_kernels());
    if (const auto norms = nn::norm_kernels(); !norms.empty()) log::info("norms and GEGLU: {}", norms);
  }
  if (c.bench.profile) figures.add(step.profile());
  return figures;
}

}  // namespace millrace
