#include "train/validation_set.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "launch/broadcast_plan.h"
#include "millrace/core/error.h"
#include "millrace/core/stop.h"
#include "millrace/core/stopwatch.h"
#include "millrace/latents/encoding_shape.h"
#include "millrace/nn/device.h"
#include "millrace/parcels/batch_receiver.h"
#include "millrace/produce/encode_pipeline.h"
#include "millrace/train/validation.h"
#include "train/parcel_exchange.h"

namespace millrace {
namespace {

// The encoders' batch need not be larger than the set, and does not depend on the ranks.
int encoder_batch(const TrainConfig& c) {
  const auto samples = static_cast<std::int64_t>(c.validation.batches) * c.batch.global;
  return static_cast<int>(std::min<std::int64_t>(c.encode.batch_size, samples));
}

// The set's own stripes, as `auto` chooses them; more of them only where there are more ranks than that. Collective.
DataPlan plan_set(const Group& world, const DataConfig& data, int global_batch, const Roles& roles) {
  auto plan = broadcast_data_plan(world, data.train, data, global_batch);
  const int ranks = static_cast<int>(std::max(roles.trainers.size(), roles.producers.size()));
  if (static_cast<int>(plan.stripes.stripes) >= ranks || global_batch < ranks) return plan;
  auto more = data;
  more.stripes.value = ranks;
  while (global_batch % *more.stripes.value != 0) ++*more.stripes.value;
  try {
    return broadcast_data_plan(world, data.train, more, global_batch);
  } catch (const AgreedError& error) {
    if (error.exit() != Exit::usage) throw;
    const Error cause = Error(
        Exit::usage,
        fmt::format("its {} archives feed {} stripes, too few for {} trainers and {} producers",
                    plan.manifest.archives.size(), plan.stripes.stripes, roles.trainers.size(), roles.producers.size()),
        "give it more archives or rows (a pipe, an address or a compressed file feeds one stripe), or use fewer ranks");
    throw AgreedError(cause, error.group());
  }
}

// In rounds of a second, in which all trainers learn of a signal that any rank was sent.
std::vector<EncodedBatch> collect(const ValidationPass& pass, ParcelReceiver& receiver) {
  const auto& plan = pass.plan;
  const double limit_seconds = pass.limit_seconds;
  const int self = position_in(pass.roles.trainers, pass.session.world.rank());
  BatchReceiver source(receiver, plan.input.routing.producer_places(self), plan.input.samples_per_stripe);
  std::vector<EncodedBatch> batches;
  double waited = 0;  // for the next one
  for (;;) {
    const bool is_whole = std::ssize(batches) == plan.batches;
    std::int64_t facts[] = {stop::requested() || receiver.signal_number() != 0 ? 1 : 0, is_whole ? 0 : 1};
    pass.of_role.all_reduce_max(facts);
    const auto [is_stopped, any_lacks] = facts;
    if (is_stopped || !any_lacks) break;
    if (is_whole) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    const Stopwatch round;
    auto batch = source.next(/*seconds=*/1);
    waited = batch ? 0 : waited + awake_seconds(round.seconds());
    if (batch) batches.push_back(std::move(*batch));
    if (const auto stripe = source.overdue_stripe(limit_seconds); stripe && waited > limit_seconds)
      throw Error(Exit::suspect_node,
                  fmt::format("data.validation: no samples of stripe {} from {} for {:.0f} s", *stripe,
                              receiver.producer_name(source.producer_of(*stripe)), limit_seconds),
                  "look at that rank's log; guard.hang_timeout sets the limit");
  }
  receiver.finish(limit_seconds);
  return batches;
}

}  // namespace

std::optional<ValidationPlan> plan_validation(const Session& session, const TrainConfig& c,
                                              const PipelineFolder& pipeline, const Roles& roles,
                                              const std::optional<EncodingShape>& training_shape) {
  if (!c.data.validation) return std::nullopt;
  const auto& world = session.world.group();
  ValidationPlan plan;
  plan.config = c;
  plan.config.run.seed = validation_seed;
  plan.config.run.dir.value += "/validation";  // where its rejected rows are listed
  plan.config.data.train = *c.data.validation;
  plan.config.data.stripes = {};
  plan.config.encode.cache.reset();
  plan.config.encode.batch_size = encoder_batch(c);
  plan.batches = c.validation.batches;
  plan.global_batch = c.batch.global;
  auto& input = plan.input;
  try {
    input.data = plan_set(world, plan.config.data, c.batch.global, roles);
    input.encoding = broadcast_encoding_plan(world, plan.config, pipeline, input.data.manifest,
                                             parse_dtype(c.encode.dtype, session.device));
    on_all(world, [&] {
      if (training_shape && !(input.encoding.shape == *training_shape))
        throw Error(Exit::usage, "its encodings have another shape than those trained on",
                    "a latent cache fits where transform.resolution and model.pipeline are the same");
      input.routing = plan_routing(roles, input.stripes());
      plan_parcels(input, c.batch.global, roles);
    });
  } catch (const AgreedError& error) {
    if (std::string_view(error.what()).starts_with(plan.config.data.train.section)) throw;
    throw AgreedError({error.exit(), fmt::format("{}: {}", plan.config.data.train.section, error.what()), error.hint()},
                      error.group());
  }
  return plan;
}

std::string describe(const ValidationPlan& plan, const ValidationConfig& config) {
  const auto samples = static_cast<std::size_t>(plan.batches) * static_cast<std::size_t>(plan.global_batch);
  return fmt::format("every {}: {} batches of {} samples of {} archives, {} in the trainers' memory",
                     to_string(config.every), plan.batches, plan.global_batch, plan.input.data.manifest.archives.size(),
                     format_bytes(samples * encoding_bytes(plan.input.encoding.shape)));
}

std::vector<EncodedBatch> share_validation(const ValidationPass& pass) {
  const auto& plan = pass.plan;
  const ParcelExchange exchange{.session = pass.session,
                                .roles = pass.roles,
                                .input = plan.input,
                                .group = pass.handoff,
                                .slots = 2,
                                .name = "data.validation"};
  const auto produce = [&](ParcelSender& sender, const ProducerPlan& producer) {
    EncodePipeline encodings(plan.config, pass.pipeline, plan.input.data, plan.input.encoding, pass.session.device,
                             pass.session.world.rank(), pass.networks);
    StreamOptions unshuffled;
    unshuffled.threads = plan.config.data.threads.value_or(pass.session.threads);
    encodings.produce(sender, producer, unshuffled);
  };
  if (pass.roles.trains(pass.session.world.rank()))
    return receive_parcels(exchange, produce, [&](ParcelReceiver& receiver) { return collect(pass, receiver); });
  send_parcels(exchange, *make_sender(exchange), produce);
  return {};
}

}  // namespace millrace
