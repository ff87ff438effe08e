#include "train/train_rounds.h"

#include <filesystem>

#include "launch/broadcast_tensor.h"
#include "millrace/comm/fault.h"
#include "millrace/core/leave.h"
#include "millrace/core/log.h"
#include "millrace/core/phase.h"
#include "millrace/core/run_files.h"
#include "millrace/core/startup.h"
#include "millrace/core/text.h"
#include "millrace/train/state_file.h"
#include "run/finish.h"
#include "run/rollback.h"
#include "train/parcel_exchange.h"
#include "train/trainer.h"

namespace millrace {
namespace {

constexpr double last_seconds = 600;       // for producers to end whom nobody needs any more
constexpr double save_seconds = 4 * 3600;  // for trainers to write the last checkpoint, with limits of their own

// How a round ended: with an exit code, or because training has to go back to before these steps.
struct RoundEnd {
  int exit = 0;
  std::optional<StepRange> bad = {};
  bool has_saved = false;  // a checkpoint, before
};

// What every rank works with from the first round to the last.
struct Rounds {
  const Session& session;
  const TrainPlan& plan;
  LoadedNetworks& networks;
  const RunLease& lease;
  Group handoff;                   // of parcels; alone where every rank does both
  std::optional<Trainer> trainer;  // on trainers

  int rank() const { return session.world.rank(); }
  // For the first samples to come, and for a producer to end, which may have an encoder batch in work.
  double slow_seconds() const { return phase::slow_factor * plan.config.guard.hang_seconds(); }
  bool trains() const { return plan.roles.trains(rank()); }
};

// Of this rank's trainer, if it has one.
std::vector<EncodedBatch> validation_batches(const Rounds& rounds, const Group& of_role) {
  const auto& plan = rounds.plan;
  if (!plan.validation) return {};
  const auto& pipeline = rounds.networks.encode_pipeline;
  return share_validation({.session = rounds.session,
                           .plan = *plan.validation,
                           .pipeline = plan.pipeline,
                           .roles = plan.roles,
                           .networks = pipeline ? pipeline->networks() : EncoderNetworks(),
                           .handoff = rounds.handoff,
                           .of_role = of_role,
                           .limit_seconds = rounds.slow_seconds()});
}

// ---- producer ----------------------------------------------------------------------------------------------------

RoundEnd produce_for_trainers(const Rounds& rounds, const ParcelExchange& exchange,
                              const ParcelExchange::Produce& produce) {
  const auto sender = make_sender(exchange);  // where that fails, no trainer could be told
  phase::current = phase::producing;
  try {
    send_parcels(exchange, *sender, produce);
  } catch (...) {
    // The trainers save what they have trained, print this and end all ranks, unless they have ended in order
    // meanwhile.
    const Error error = present_error();
    fault::write_own(error);
    log::error("{}", error.what());
    log::flush();
  }
  phase::current = phase::ending;
  const double usual_seconds = rounds.handoff.time_limit();
  rounds.handoff.set_time_limit(save_seconds);
  rounds.handoff.barrier();
  rounds.handoff.set_time_limit(usual_seconds);  // trainers may go back to a checkpoint: another round follows
  return {};
}

// ---- trainer -----------------------------------------------------------------------------------------------------

// Beside the folder where a run that went on from its end was exported before.
std::string export_line(const std::string& dir, std::int64_t step) {
  std::error_code ignored;
  const auto out = fmt::format("{}/{}", dir, run_file::pipeline);
  const bool is_taken = std::filesystem::exists(out, ignored);
  return fmt::format("millrace export --run {} --out {}", shell_word(dir),
                     shell_word(is_taken ? fmt::format("{}-{}", out, step) : out));
}

// What is left to do once the run's state is safe must not undo that: producers that do not stop are left behind.
RoundEnd end_run(const Rounds& rounds, const Group& trainers, const LoopResult& result, ParcelReceiver& receiver) {
  const auto& config = rounds.plan.config;
  const auto& dir = config.run.dir.value;
  const int exit = finish_run(trainers, dir, rounds.lease, result, config.checkpoint.resume,
                              [&] { return export_line(dir, result.state.step); });
  phase::current = phase::ending;
  // Not with 0: Slurm would leave the other ranks running. That the run is done, STATE says.
  leave_within(2 * last_seconds, exit == 0 ? Exit::suspect_node : static_cast<Exit>(exit),
               "the producers have not ended");
  try {
    receiver.finish(last_seconds);
  } catch (const Error& error) {
    log::warning("{}", error.what());
  }
  rounds.handoff.barrier();  // no rank leaves while another one still needs it
  return {exit};
}

RoundEnd train(Rounds& rounds, const Group& trainers, const Start& start, ParcelReceiver& receiver) {
  const auto result = rounds.trainer->train(start, receiver);
  if (!result.bad || result.failure) return end_run(rounds, trainers, result, receiver);
  receiver.finish(rounds.slow_seconds());
  rounds.handoff.barrier();
  return {0, result.bad, result.checkpoint != start.path()};
}

// ---- the whole ---------------------------------------------------------------------------------------------------

RoundEnd take_role(Rounds& rounds, const Group& of_role, const Start& start) {
  const auto& plan = rounds.plan;
  const ParcelExchange exchange{
      .session = rounds.session, .roles = plan.roles, .input = plan.input, .group = rounds.handoff};
  const auto produce = [&](ParcelSender& sender, const ProducerPlan& producer) {
    rounds.networks.encode_pipeline->produce(
        sender, producer, make_stream_options(plan.config.data, rounds.session.threads), start.state.cursors);
  };
  if (!rounds.trains()) return produce_for_trainers(rounds, exchange, produce);
  return receive_parcels(exchange, produce,
                         [&](ParcelReceiver& receiver) { return train(rounds, of_role, start, receiver); });
}

// Lets producers know what the trainers know. Collective.
RoundEnd share_end(const Group& world, RoundEnd end, int trainer) {
  std::int64_t facts[] = {0, 0, 0};
  if (world.rank() == trainer && end.bad) {
    facts[0] = end.bad->first;
    facts[1] = end.bad->last;
    facts[2] = end.has_saved ? 1 : 0;
  }
  world.all_reduce_max(facts);
  if (facts[1] > 0) end.bad = StepRange{facts[0], facts[1]};
  end.has_saved = facts[2] > 0;
  return end;
}

// Before a round.
int stopped(const Rounds& rounds, const Start& start) {
  if (rounds.session.is_root())
    StateFile(rounds.plan.config.run.dir.value, &rounds.lease)
        .update(RunStatus::requeue, start.state.point(), start.path(), "told to stop");
  return static_cast<int>(Exit::requeue);
}

}  // namespace

int train_in_rounds(const Session& session, const TrainPlan& plan, LoadedNetworks& networks, const RunLease& lease) {
  const auto& world = session.world.group();
  Rounds rounds{session, plan, networks, lease, plan.roles.all_in_one ? Group() : world.duplicate(), std::nullopt};
  const auto of_role = world.split(rounds.trains() ? 0 : 1, world.rank());
  auto validation = validation_batches(rounds, of_role);
  if (told_to_stop(world)) return stopped(rounds, plan.start);
  phase::steps_taken = 0;  // validation's parcels were no part of training
  startup::done("validation");
  if (is_first_on_host(plan.roles.producers, session.world.hosts(), world.rank())) clear_leftovers(plan.input.encoding);
  torch::Tensor null_text;  // the empty caption's embeddings, f16 (77, C): the first producer's, or a trainer's own
  const int maker = plan.roles.producers.front();
  if (world.rank() == maker) {
    null_text = networks.encode_pipeline->null_text();
    begin_cache(plan.input.encoding, null_text);
  }
  null_text = broadcast_tensor(world, null_text, torch::kHalf, maker);  // behind it the cache is there for all
  if (!null_text.defined()) null_text = networks.null_text;
  if (rounds.trains())
    rounds.trainer.emplace(session, plan, networks, null_text, std::move(validation), of_role, lease);

  Start start = plan.start;
  for (;;) {
    const auto end = share_end(world, take_role(rounds, of_role, start), plan.roles.trainers.front());
    if (!end.bad) return end.exit;
    fault::forget();
    startup::begin();
    phase::current = phase::loading;
    start = roll_back(world, {plan.config.run.dir.value, &lease}, start, *end.bad, end.has_saved, plan.roles.trainers);
    if (told_to_stop(world)) return stopped(rounds, start);
    startup::done("checkpoint");
  }
}

}  // namespace millrace
