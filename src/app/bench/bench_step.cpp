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
#include "run/training_pass.h"

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

}  // namespace

BenchResult bench_step(const BenchConfig& c, World& world) {
  const auto device = resolve_device(c.run.device, world.local_rank());
  const auto dtype = parse_dtype(c.model.dtype, device);
  const auto folder = PipelineFolder::open(c.model.pipeline);
  const auto vae = AutoencoderKLConfig::from_json(folder.config("vae"));
  auto unet = make_unet(folder.config("unet"), /*seed=*/0);
  check_latent_channels(unet->config(), vae);
  nn::place(*unet, device, dtype, c.model.channels_last.value);
  unet->set_gradient_checkpointing(c.model.gradient_checkpointing);
  const auto group = world.group().duplicate();
  ShardedModel model(*unet, execution_order(*unet), plan_shards(c.parallel, world.hosts()), c.parallel, group);
  ShardedAdamW optimizer(model, c.optim, c.ema);
  const NoiseSchedule schedule(trained_scheduler(folder.scheduler(), c.objective));

  const auto side = c.transform.resolution / vae.factor();
  const auto width = CLIPTextConfig::from_json(folder.config("text_encoder")).hidden_size;
  const auto random = [&](at::IntArrayRef shape) {  // on the host, pinned as a BatchReceiver's batch is
    const auto numbers = torch::randn(shape).to(torch::kHalf);
    return device.is_cuda() ? numbers.pin_memory() : numbers;
  };
  const auto moments = random({c.micro_batch(), 2 * vae.latent_channels, side, side});
  const auto text = random({c.micro_batch(), token_count, width});
  const auto null_text = upload(text[0], device);
  std::vector<RngKey> keys;
  for (int i = 0; i < c.micro_batch(); ++i) keys.push_back({0, static_cast<std::uint64_t>(i), 0});

  const auto send_inputs = [&] { return Inputs{{moments, device}, {text, device}}; };
  Inputs inputs = send_inputs();

  if (c.model.cuda_graphs.value_or(false) && group.size() > 1)
    throw Error(Exit::usage, "bench step: among several ranks its one micro-batch a step is no graph",
                "model.cuda_graphs=false, or one rank");
  const bool by_graph = c.model.cuda_graphs.value_or(suits_cuda_graphs(unet->config(), c.model.fused_kernels, device) &&
                                                     group.size() == 1 && !c.bench.profile);
  Passes passes(model, by_graph);
  const auto loss_of = [&](const Passes::Tensors& tensors) {
    const auto step = step_input(tensors);
    const auto loss = diffusion_loss(predict(unet, step, dtype), step).mean();
    return group.size() > 1 ? loss / group.size() : loss;
  };

  // One step; `ended` is called after each of its stages. Its input takes the way of a DiffusionTask's: it is there
  // when the step begins, and the next one sets out when forward has been started.
  const auto run_step = [&](const std::function<void(double StageSeconds::*stage)>& ended) {
    for (auto& key : keys) ++key.epoch;
    const auto step =
        make_step_input(inputs.moments.take(), inputs.text.take(), null_text, keys,
                        uniform_timesteps(keys, schedule.size()), vae.latent_scale(), schedule, c.objective, device);
    const auto tensors = pass_inputs(step, dtype);
    model.begin_gradients(1);
    ended(&StageSeconds::input);
    passes.run(group.size() > 1 ? Passes::Kind::by_kernels : Passes::Kind::first, tensors, loss_of, [&] {
      inputs = send_inputs();
      ended(&StageSeconds::forward);
    });
    ended(&StageSeconds::backward);
    model.finish_gradients(1.0);
    optimizer.step(c.optim.lr, clip_factor(c.optim.clip, model.gradient_norm()));
    ended(&StageSeconds::update);
  };

  const auto run_whole_step = [&] { run_step([](double StageSeconds::*) {}); };
  const auto run_stages = [&](StageSeconds& seconds) {
    Stopwatch watch;
    run_step([&](double StageSeconds::*stage) {
      synchronize(device);
      seconds.*stage += watch.lap();
    });
  };

  BenchResult figures("step");
  figures.set_resolution(c.transform.resolution);
  repeat(c, group, [&](bool measured) {
    synchronize(device);
    Stopwatch watch;
    for (int i = 0; i < c.bench.steps; ++i) run_whole_step();
    synchronize(device);
    const double total = watch.lap();
    if (!measured) return;
    StageSeconds seconds;  // of steps of their own, since each stage ends with waiting for the GPU
    for (int i = 0; i < c.bench.steps; ++i) run_stages(seconds);
    figures.add("steps", "steps/s", c.bench.steps / total);
    figures.add("images", "images/s", c.bench.steps * c.micro_batch() * group.size() / total);
    figures.add("input", "ms", 1000 * seconds.input / c.bench.steps);
    if (by_graph) {
      figures.add("pass", "ms", 1000 * (seconds.forward + seconds.backward) / c.bench.steps);
    } else {
      figures.add("forward", "ms", 1000 * seconds.forward / c.bench.steps);
      figures.add("backward", "ms", 1000 * seconds.backward / c.bench.steps);
    }
    figures.add("update", "ms", 1000 * seconds.update / c.bench.steps);
  });
  if (world.rank() == 0) {
    log::info("attention: {}", nn::attention_kernels());
    if (const auto norms = nn::norm_kernels(); !norms.empty()) log::info("norms and GEGLU: {}", norms);
  }
  if (c.bench.profile) figures.add(profile_steps(device, run_whole_step));
  return figures;
}

}  // namespace millrace
