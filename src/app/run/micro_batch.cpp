#include "run/micro_batch.h"

#include <algorithm>
#include <limits>

#include "millrace/comm/agree.h"
#include "millrace/core/log.h"
#include "millrace/core/node_memory.h"
#include "millrace/core/units.h"
#include "millrace/nn/device.h"
#include "millrace/nn/gpu_identity.h"
#include "millrace/nn/gpu_watch.h"

namespace millrace {
namespace {

// What this rank may have of its device, if those who share it have as much.
std::int64_t own_memory(const Session& session) {
  const auto& world = session.world.group();
  const auto device = session.device.is_cuda() ? gpu_uuid(session.device) : session.world.host();
  const auto devices = world.all_gather_strings(device);
  const auto total = session.device.is_cuda() ? gpu_identity(session.device).total_bytes : node_memory_bytes();
  return static_cast<std::int64_t>(total / static_cast<std::uint64_t>(std::ranges::count(devices, device)));
}

[[noreturn]] void fail_memory(double wanted, double usable, std::int64_t total) {
  throw Error(
      Exit::usage,
      fmt::format("batch.micro=auto: a trainer with one image wants {}, of {} it may have {}",
                  format_bytes(static_cast<std::uint64_t>(wanted)), format_bytes(static_cast<std::uint64_t>(total)),
                  format_bytes(static_cast<std::uint64_t>(std::max(usable, 0.0)))),
      "model.gradient_checkpointing=true, parallel.strategy=full_shard over more trainers, or a smaller "
      "encode.batch_size where ranks do both; batch.micro=1 tries it all the same");
}

int fitting_micro_batch(const TrainPlan& plan, torch::Device device, std::int64_t total) {
  const auto& c = plan.config;
  const RunMemory memory(c, {plan.unet, plan.pipeline.config("vae"), plan.pipeline.config("text_encoder")}, device);
  const bool encodes = plan.roles.all_in_one && c.data.train.type != SourceConfig::Type::latents;
  const double beside = memory.overhead() + (encodes ? memory.encoder() : 0);
  const double usable = usable_share(device) * static_cast<double>(total);
  const auto wanted = [&](int images) { return memory.trainer(images, plan.shards) + beside; };
  const int fitting = fitting_batch(usable, wanted);
  if (fitting == 0) fail_memory(wanted(1), usable, total);
  return fitting;
}

}  // namespace

double usable_share(torch::Device device) {
  return device.is_cuda() ? 0.85 : 0.5;
}

int choose_micro_batch(const Routing& routing, int global_batch, int fitting) {
  const int trainers = routing.trainers();
  if (!routing.is_even()) {
    const int samples_per_stripe = global_batch / static_cast<int>(routing.trainer_of_stripe.size());
    std::size_t most = 0;
    for (int trainer = 0; trainer < trainers; ++trainer)
      most = std::max(most, routing.stripes_of_trainer(trainer).size());
    const int share = static_cast<int>(most) * samples_per_stripe;
    const int turns = (share + fitting - 1) / fitting;
    return (share + turns - 1) / turns;
  }
  const int share = global_batch / trainers;
  int micro = std::min(fitting, share);
  while (share % micro != 0) --micro;
  return micro;
}

void check_micro_batch(const Routing& routing, int global_batch, int micro_batch) {
  const int trainers = routing.trainers();
  if (routing.is_even() && global_batch % (std::int64_t{micro_batch} * trainers) != 0)
    throw Error(Exit::usage,
                fmt::format("batch.global = {} is not a multiple of batch.micro x trainers = {} x {}", global_batch,
                            micro_batch, trainers),
                fmt::format("batch.micro must divide {}", global_batch / trainers));
}

int plan_micro_batch(const Session& session, const TrainPlan& plan) {
  const auto& c = plan.config;
  if (c.batch.micro.value) return *c.batch.micro.value;
  const auto& world = session.world.group();
  std::int64_t least[] = {own_memory(session)};
  if (!plan.roles.trains(world.rank())) least[0] = std::numeric_limits<std::int64_t>::max();
  world.all_reduce_min(std::span<std::int64_t>(least));
  std::int64_t micro[] = {0};
  on_all(world, [&] {
    if (world.rank() == plan.roles.trainers.front())  // whose device is of the trainers' kind
      micro[0] = choose_micro_batch(plan.routing, c.batch.global, fitting_micro_batch(plan, session.device, least[0]));
  });
  world.all_reduce_max(std::span<std::int64_t>(micro));
  return static_cast<int>(micro[0]);
}

}  // namespace millrace
