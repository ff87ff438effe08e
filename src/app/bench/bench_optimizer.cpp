// bench optimizer: norm, clip, AdamW, EMA and completing the parameters, for a U-Net's shapes and made-up gradients.
#include <cmath>

#include "bench/bench.h"
#include "millrace/models/initialize.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/device.h"
#include "millrace/nn/layers.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/sharded_optimizer.h"

namespace millrace {
namespace {

// One bucket's shard before an update, in double precision.
struct Before {
  torch::Tensor weights, exp_avg, exp_avg_sq, ema, gradient;
};

Before copy_bucket(const ShardedModel& model, const ShardedAdamW& optimizer, int bucket) {
  const auto copy = [&](const char* name) {
    const auto found = optimizer.state().find(name);
    return found == optimizer.state().end() ? torch::Tensor() : found->second[bucket].to(torch::kFloat64, false, true);
  };
  return {copy("weights"), copy("exp_avg"), copy("exp_avg_sq"), copy("ema"),
          model.gradient_shard(bucket).to(torch::kFloat64, false, true)};
}

void expect_close(const torch::Tensor& got, const torch::Tensor& wanted, double scale, const char* what) {
  const auto excess = ((got.to(torch::kFloat64) - wanted).abs() - 2e-6 * (wanted.abs() + scale)).max().item<double>();
  ensure(excess <= 0, fmt::format("bench optimizer: {} differ from the plain formula of AdamW", what));
}

// Loshchilov and Hutter's update, written down as in the paper and computed in double precision.
void check_update(const Before& b, const ShardedAdamW& optimizer, int bucket, const BenchConfig& c, double clip) {
  const auto& o = c.optim;
  const auto t = static_cast<double>(optimizer.updates());
  const auto g = b.gradient * clip;
  const auto m = o.betas[0] * b.exp_avg + (1 - o.betas[0]) * g;
  const auto v = o.betas[1] * b.exp_avg_sq + (1 - o.betas[1]) * g * g;
  const auto step = (m / (1 - std::pow(o.betas[0], t))) / ((v / (1 - std::pow(o.betas[1], t))).sqrt() + o.eps);
  const auto weights = b.weights * (1 - o.lr * o.weight_decay) - o.lr * step;
  const auto& state = optimizer.state();
  expect_close(state.at("weights")[bucket], weights, o.lr, "weights");
  if (!optimizer.has_ema()) return;
  const double decay = ema_decay(c.ema, optimizer.ema_updates());
  expect_close(state.at("ema")[bucket], decay * b.ema + (1 - decay) * weights, o.lr, "averages");
}

}  // namespace

BenchResult bench_optimizer(const BenchConfig& c, World& world) {
  const auto device = resolve_device(c.run.device, world.local_rank());
  const auto group = world.group().duplicate();
  auto unet = make_unet(PipelineFolder::open(c.model.pipeline).config("unet"), /*seed=*/0);
  nn::place(*unet, device, parse_dtype(c.model.dtype, device), c.model.channels_last.value);
  ShardedModel model(*unet, execution_order(*unet), plan_shards(c.parallel, world.hosts()), c.parallel, group);
  ShardedAdamW optimizer(model, c.optim, c.ema);
  double elements = 0;
  for (int b = 0; b < model.buckets(); ++b) {
    model.gradient_shard(b).normal_(0, 1e-3);
    elements += static_cast<double>(model.layout().buckets[b].elements);
  }

  BenchResult figures("optimizer");
  repeat(c, group, [&](bool measured) {
    Stopwatch watch;
    const double clip = clip_factor(c.optim.clip, model.gradient_norm());
    const double norm = watch.lap();
    const int checked = model.buckets() - 1;
    const auto before = measured ? Before{} : copy_bucket(model, optimizer, checked);
    watch.lap();
    optimizer.step(c.optim.lr, clip);
    synchronize(device);
    const double update = watch.lap();
    if (!measured) {
      check_update(before, optimizer, checked, c, clip);
      ensure(optimizer.differing_trainers().trainers.empty(), "bench optimizer: the trainers' weights differ");
      return;
    }
    figures.add("updates", "updates/s", 1 / (norm + update));
    figures.add("parameters", "M/s", elements / 1e6 / (norm + update));
    figures.add("norm", "ms", 1000 * norm);
    figures.add("update", "ms", 1000 * update);
  });
  return figures;
}

}  // namespace millrace
