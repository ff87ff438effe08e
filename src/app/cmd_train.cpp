// train: ranks split into producers and trainers, or do both; see docs/architecture.md for the data flow.
#include <fmt/ranges.h>
#include <cstring>
#include <set>

#include "app_config.h"
#include "command.h"
#include "millrace/checkpoint/restore.h"
#include "millrace/comm/fault.h"
#include "millrace/core/deadline.h"
#include "millrace/core/log.h"
#include "millrace/core/phase.h"
#include "millrace/core/startup.h"
#include "millrace/handoff/parcel_receiver.h"
#include "millrace/loader/data_plan.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/models/unet_memory.h"
#include "millrace/nn/device.h"
#include "millrace/parallel/state_memory.h"
#include "millrace/produce/encode_pipeline.h"
#include "millrace/produce/producer.h"
#include "millrace/produce/producer_thread.h"
#include "millrace/train/diffusion_task.h"
#include "millrace/train/loop.h"
#include "millrace/train/state_file.h"
#include "run/disk_space.h"
#include "run/finish.h"
#include "run/networks.h"
#include "run/rollback.h"
#include "run/run_folder.h"
#include "run/session.h"
#include "run/train_plan.h"

namespace millrace {
namespace {

constexpr int handoff_slots = 4;
constexpr double producer_seconds = 600;  // for a producer to end, which may have an encoder batch in work

// What a trainer may wait for samples; the first ones come only after everything has started.
double start_seconds(const TrainConfig& config) {
  return 5 * hang_seconds(config.guard.hang_timeout);
}

TrainPlan make_plan(const Session& session, const TrainConfig& config, config::Report& report) {
  const auto& world = session.world.group();
  TrainPlan plan{.config = config};
  on_all(world, [&] { plan_model(plan); });
  plan_roles(session, plan);
  plan_samples(session, plan, report);
  plan.shuffle = plan_shuffle(session, config, plan.data, plan.encoding, plan.roles, plan.routing);
  const auto identity = run_identity("unet", config::dump_yaml(config), plan.data, plan.unet, plan.pipeline.path());
  plan.start = plan_start(world, config, identity, plan.data.manifest);
  startup::done("checkpoint");
  return plan;
}

std::string describe_batch(const BatchConfig& batch, const Routing& routing) {
  if (routing.is_even())
    return fmt::format("{} = {} x {} trainers x {} accumulated", batch.global, batch.micro, routing.trainers(),
                       batch.global / (batch.micro * routing.trainers()));
  return fmt::format("{} on {} trainers ({}), micro-batches of at most {}", batch.global, routing.trainers(),
                     describe_shares(routing), batch.micro);
}

void print_start(const Session& session, const TrainPlan& plan) {
  const auto& c = plan.config;
  auto row = [](const char* name, const std::string& text) { log::info("  {:<12} {}", name, text); };
  log::info("millrace {} train", MILLRACE_VERSION);
  row("ranks",
      fmt::format("{} on {}: {}", session.world.size(),
                  fmt::join(std::set<std::string>(session.world.hosts().begin(), session.world.hosts().end()), ", "),
                  describe(plan.roles)));
  row("device", fmt::format("{}, {} threads a rank, model in {}", device_name(session.device), session.threads,
                            dtype_name(parse_dtype(c.model.dtype, session.device))));
  row("pipeline", fmt::format("{}, U-Net {}", c.model.pipeline.value,
                              plan.start.checkpoint                                ? "from a checkpoint"
                              : c.model.unet.init == ModelConfig::Init::pretrained ? "pretrained"
                                                                                   : "with fresh weights"));
  row("data", describe(plan.data));
  row("shuffle", describe(plan.shuffle));
  row("batch", describe_batch(c.batch, plan.routing));
  row("encodings", describe(plan.encoding));
  row("handoff",
      fmt::format("parcels of {} samples, at most {}", plan.parcel.samples(), format_bytes(plan.parcel_bytes)));
  row("objective", fmt::format("{}, caption drop {}", to_string(c.objective.prediction), c.objective.caption_dropout));
  row("optimizer", fmt::format("AdamW lr {} wd {}, {}, EMA {}", c.optim.lr, c.optim.weight_decay,
                               to_string(c.parallel.strategy), c.ema.enabled ? std::to_string(c.ema.decay) : "off"));
  if (plan.validation) row("validation", describe(*plan.validation, c.validation));
  row("duration", fmt::format("{}, from step {}", to_string(c.duration), plan.start.state.step));
  row("run", c.run.dir.value);
  for (const auto& warning : memory_warnings(plan.shuffle)) log::warning("{}", warning);
}

// What a rank loads for its roles.
struct Networks {
  std::optional<EncodePipeline> encode_pipeline;  // of a producer
  UNet2DConditionModel unet{nullptr};             // of a trainer: in float32 on the host, as the next
  std::map<std::string, torch::Tensor> ema;       // what it starts from, unless that is the U-Net
  std::optional<TextEncoder> text_encoder;        // of a trainer with encode.text_on=trainer
  torch::Tensor null_text;                        // of a trainer: embeddings of the empty caption, f16 (77, C)
};

// What trainers make text embeddings with, if that is up to them.
void load_text_encoder(const Session& session, const TrainPlan& plan, Networks& networks) {
  const auto& c = plan.config;
  const auto dtype = parse_dtype(c.encode.dtype, session.device);
  const auto tokenizer = ClipTokenizer::load(plan.pipeline.component("tokenizer"), c.tokenizer);
  networks.text_encoder.emplace(plan.pipeline.load_text_encoder(session.device, dtype), session.device, dtype,
                                c.batch.micro);
  networks.null_text = networks.text_encoder->encode(tokenizer.encode(""));
}

// ---- producer ----------------------------------------------------------------------------------------------------

// A producer's life, until every trainer has said stop.
void produce_until_stopped(const Session& session, const TrainPlan& plan, EncodePipeline& pipeline, int producer,
                           ParcelSender& sender) {
  pipeline.produce(sender,
                   {plan.routing.stripes_of_producer(producer), plan.routing.trainer_places(producer), plan.parcel},
                   stream_options(plan.config.data, session.threads), plan.start.state.cursors);
}

// The text embeddings of the empty caption are made by the first producer for everybody, unless trainers have made
// them. From then on the cache is there for the other producers.
void share_null_text(const Session& session, const TrainPlan& plan, Networks& networks) {
  const int maker = plan.roles.producers.front();
  std::string bytes;
  if (session.world.rank() == maker) {
    const auto text = networks.encode_pipeline->null_text();
    networks.encode_pipeline->begin_cache(text);
    if (text.defined()) bytes.assign(static_cast<const char*>(text.data_ptr()), text.nbytes());
  }
  bytes = session.world.group().broadcast(bytes, maker);
  if (plan.encoding.shape.has_tokens()) return;
  networks.null_text = torch::empty(plan.encoding.shape.text, torch::kHalf);
  ensure(bytes.size() == networks.null_text.nbytes(), "the empty caption's embeddings have the text encoder's shape");
  std::memcpy(networks.null_text.data_ptr(), bytes.data(), bytes.size());
}

void run_producer_role(const Session& session, const TrainPlan& plan, Networks& networks, const Group& handoff) {
  auto& pipeline = *networks.encode_pipeline;
  if (plan.validation)
    produce_validation(session, *plan.validation, plan.pipeline, pipeline.networks(), plan.roles, handoff);
  const int self = position_in(plan.roles.producers, session.world.rank());
  share_null_text(session, plan, networks);
  const auto trainers = pick(plan.roles.trainers, plan.routing.trainers_of(self));
  const auto sender = make_mpi_sender(handoff, trainers, {plan.parcel_bytes, handoff_slots});
  phase::current = phase::producing;
  try {
    produce_until_stopped(session, plan, pipeline, self, *sender);
  } catch (...) {
    // The trainers have been told. They save what they have trained, print this and end all ranks, unless they have
    // ended in order meanwhile.
    const Error error = present_error();
    fault::write(error);
    log::error("{}", error.what());
    log::flush();
  }
  phase::current = phase::ending;
  handoff.barrier();
}

// ---- trainer -----------------------------------------------------------------------------------------------------

// Of this trainer's local batches, which were encoded before.
Validation start_validation(const Session& session, const TrainPlan& plan, const UNet2DConditionModel& unet,
                            const DiffusionTask::Options& training, std::vector<EncodedBatch> batches) {
  Validation::Options options;
  options.every = plan.config.validation.every;
  options.objective = training.objective;
  options.samples = std::int64_t{plan.validation->batches} * plan.validation->global_batch;
  options.micro_batch = plan.config.batch.micro;
  options.text_encoder = training.text_encoder;
  options.scaling_factor = training.scaling_factor;
  options.shift_factor = training.shift_factor;
  options.device = session.device;
  options.dtype = training.dtype;
  return {unet, NoiseSchedule(trained_scheduler(plan.pipeline.scheduler(), training.objective)), std::move(batches),
          options};
}

// A producer that sends nothing may be unable to say so itself.
void accuse(const Session& session, const TrainPlan& plan, const Overdue& overdue, const Error& error) {
  const int rank = plan.roles.producers[overdue.producer];
  fault::write_about({plan.config.run.dir.value, rank, session.world.hosts()[rank], "producer"}, error, "silent");
}

// As it follows from the shapes, for the size of micro-batches and the choice of machines.
void tell_memory(const TrainPlan& plan, const ShardedModel& model, torch::Dtype dtype) {
  const auto& c = plan.config;
  const auto& moments = plan.encoding.shape.moments;
  const auto state = plan_state_memory(model.layout(), model.plan(), dtype, c.ema.enabled);
  const auto activations =
      unet_activation_bytes(UNet2DConditionConfig::from_json(plan.unet),
                            {c.batch.micro, moments[1], moments[2], dtype, c.model.gradient_checkpointing});
  log::info("memory of a trainer's tensors, as planned: {} that last, {} for a micro-batch of {}, at most {} at once",
            format_bytes(state.lasting()), format_bytes(activations), c.batch.micro,
            format_bytes(state.peak(activations)));
}

LoopResult train(const Session& session, const TrainPlan& plan, Networks& networks, const Group& trainers,
                 ParcelReceiver& receiver, std::vector<EncodedBatch> validation_batches, const RunLease& lease) {
  const auto& c = plan.config;
  auto& unet = networks.unet;
  auto originals = plan.start.checkpoint ? std::map<std::string, torch::Tensor>() : weights_of(*unet);
  unet->to(session.device, parse_dtype(c.model.dtype, session.device));
  ShardedModel model(*unet, execution_order(*unet), plan.shards, c.parallel, trainers,
                     plan.start.checkpoint ? ShardedModel::Start::restored : ShardedModel::Start::of_rank_0);
  ShardedAdamW optimizer(model, c.optim, c.ema);
  if (plan.start.checkpoint) {
    restore(*plan.start.checkpoint, optimizer);
  } else {
    optimizer.start_from(std::move(originals));
    if (!networks.ema.empty()) optimizer.start_ema_from(std::exchange(networks.ema, {}));
  }

  if (trainers.rank() == 0) tell_memory(plan, model, parse_dtype(c.model.dtype, session.device));

  const auto vae = AutoencoderKLConfig::from_json(plan.pipeline.config("vae"));
  DiffusionTask::Options options;
  options.objective = c.objective;
  options.seed = c.run.seed;
  options.global_batch = c.batch.global;
  options.first_place =
      static_cast<int>(plan.routing.stripes_of_trainer(trainers.rank()).front()) * plan.samples_per_stripe;
  options.step = plan.start.state.step;
  options.scaling_factor = vae.scaling_factor;
  options.shift_factor = vae.shift_factor.value_or(0);
  options.null_text = networks.null_text;
  options.text_encoder = networks.text_encoder;
  options.device = session.device;
  options.dtype = parse_dtype(c.model.dtype, session.device);
  options.producers = plan.routing.producers_of(trainers.rank());
  options.slots = handoff_slots;
  DiffusionTask task(unet, NoiseSchedule(trained_scheduler(plan.pipeline.scheduler(), c.objective)),
                     BatchReceiver(receiver, plan.routing.producer_places(trainers.rank()), plan.samples_per_stripe),
                     receiver, options);
  startup::done(plan.start.checkpoint ? "restore" : "shards");
  std::optional<Validation> validation;
  if (plan.validation) validation = start_validation(session, plan, unet, options, std::move(validation_batches));
  const auto loop = c.loop();
  return run_loop(
      {.task = task,
       .model = model,
       .optimizer = optimizer,
       .trainers = trainers,
       .config = loop,
       .optim = c.optim,
       .data = plan.data,
       .max_bad_share = c.data.max_bad_share,
       .device = session.device,
       .manifest_extra = plan.start.identity,
       .max_wait_seconds = hang_seconds(c.guard.hang_timeout),
       .on_silent_producer = [&](const Overdue& overdue, const Error& error) { accuse(session, plan, overdue, error); },
       .trainer_ranks = on_hosts(session, plan.roles.trainers),
       .producer_ranks = on_hosts(session, plan.roles.producers),
       .lease = &lease,
       .resumed_from = plan.start.path(),
       .validation = validation ? &*validation : nullptr},
      state_with_ledger(plan.start, trainers));
}

// How training ended: with an exit code, or because it has to go back to before these steps.
struct End {
  int exit = 0;
  std::optional<UsedUpSteps> bad = {};
  bool has_saved = false;  // a checkpoint, before
};

// What is left to do once the run's state is safe must not undo that: producers that do not stop are left behind.
End finish(const Group& trainers, const TrainPlan& plan, const RunLease& lease, const LoopResult& result,
           ParcelReceiver& receiver, const Group& handoff) {
  if (result.bad && !result.failure) {
    receiver.finish(producer_seconds);
    handoff.barrier();
    return {0, result.bad, result.checkpoint != plan.start.path()};
  }
  const auto& dir = plan.config.run.dir.value;
  const int exit = finish_run(trainers, dir, lease, result, true,
                              fmt::format("millrace export --run {} --out {}/pipeline", dir, dir));
  phase::current = phase::ending;
  leave_within(2 * producer_seconds, static_cast<Exit>(exit), "the producers have not ended");
  try {
    receiver.finish(producer_seconds);
  } catch (const Error& error) {
    log::warning("{}", error.what());
  }
  handoff.barrier();  // no rank leaves while another one still needs it
  return {exit};
}

End run_trainer_role(const Session& session, const TrainPlan& plan, Networks& networks, const Group& trainers,
                     const Group& handoff, const RunLease& lease) {
  std::vector<EncodedBatch> validation;
  if (plan.validation)
    validation = collect_validation(session, *plan.validation, plan.roles, handoff, start_seconds(plan.config));
  startup::done("validation");
  share_null_text(session, plan, networks);
  const auto producers = pick(plan.roles.producers, plan.routing.producers_of(trainers.rank()));
  const auto receiver = make_mpi_receiver(handoff, producers, {plan.parcel_bytes, handoff_slots});
  const auto result = train(session, plan, networks, trainers, *receiver, std::move(validation), lease);
  return finish(trainers, plan, lease, result, *receiver, handoff);
}

// One rank does both, with the same parcels in between.
End run_both_roles(const Session& session, const TrainPlan& plan, Networks& networks, const Group& trainers,
                   const RunLease& lease) {
  std::vector<EncodedBatch> validation;
  if (plan.validation)
    validation = make_validation(session, *plan.validation, plan.pipeline, networks.encode_pipeline->networks(),
                                 start_seconds(plan.config));
  startup::done("validation");
  share_null_text(session, plan, networks);
  ProducerThread producer({plan.parcel_bytes, handoff_slots}, session.threads, "producer", [&](ParcelSender& sender) {
    produce_until_stopped(session, plan, *networks.encode_pipeline, trainers.rank(), sender);
  });
  try {
    const auto result = train(session, plan, networks, trainers, producer.receiver(), std::move(validation), lease);
    return finish(trainers, plan, lease, result, producer.receiver(), Group());
  } catch (...) {
    fault::leaving();  // before the producer's thread is waited for
    throw;
  }
}

// ---- the whole --------------------------------------------------------------------------------------------------

// The checkpoint has reached the duration.
bool is_finished(const TrainPlan& plan) {
  return plan.start.checkpoint && reached(plan.config.duration, plan.start.state.point());
}

int finish_without_training(const Session& session, const TrainPlan& plan) {
  // Another instance may still be at work; a folder that nobody holds is left as it is.
  const fs::path dir = plan.config.run.dir.value;
  std::int64_t held = session.is_root() && fs::exists(dir / "LEASE") ? 1 : 0;
  session.world.group().all_reduce_max(std::span(&held, 1));
  std::optional<RunLease> lease;
  if (held) lease.emplace(RunLease::acquire(session.world.group(), dir));
  on_root(session.world.group(), [&] {
    log::info("{} has reached step {}, and duration is {}: nothing to train", plan.start.checkpoint->path().string(),
              plan.start.state.step, to_string(plan.config.duration));
    StateFile(dir).write("done", plan.start.state.point(), plan.start.path(), Exit::done);
  });
  return 0;
}

int say_what_would_be(const Session& session, const TrainPlan& plan) {
  if (!session.is_root()) return 0;
  print_start(session, plan);
  const auto first = fmt::format("step {}", plan.start.state.step + 1);
  print_dry_run(plan.config.run.dir.value,
                is_finished(plan) ? fmt::format("train nothing: step {} is the duration", plan.start.state.step)
                : plan.start.checkpoint
                    ? fmt::format("continue with {} after {}", first, plan.start.checkpoint->path().string())
                    : fmt::format("start with {}", first));
  return 0;
}

int stopped_while_going_back(const Session& session, const TrainPlan& plan, const RunLease& lease) {
  const auto& dir = plan.config.run.dir.value;
  if (session.is_root())
    StateFile(dir, &lease).update("requeue", plan.start.state.point(), plan.start.path(), "told to stop");
  return static_cast<int>(Exit::requeue);
}

// A rank's part in training from `plan.start`.
End take_role(const Session& session, const TrainPlan& plan, Networks& networks, const Group& of_role,
              const RunLease& lease) {
  const auto& world = session.world.group();
  if (plan.roles.all_in_one) return run_both_roles(session, plan, networks, of_role, lease);
  const auto handoff = world.duplicate();
  if (plan.roles.trains(world.rank())) return run_trainer_role(session, plan, networks, of_role, handoff, lease);
  run_producer_role(session, plan, networks, handoff);
  return {};
}

// Lets producers know what the trainers know. Collective.
End share_end(const Group& world, End end, int trainer) {
  std::int64_t facts[] = {0, 0, 0};
  if (world.rank() == trainer && end.bad) {
    facts[0] = end.bad->first;
    facts[1] = end.bad->last;
    facts[2] = end.has_saved ? 1 : 0;
  }
  world.all_reduce_max(facts);
  if (facts[1] > 0) end.bad = UsedUpSteps{facts[0], facts[1], 0};
  end.has_saved = facts[2] > 0;
  return end;
}

// Loads, then opens the run folder, then trains: weights that are missing or broken must not touch the folder.
int run_roles(const Session& session, TrainPlan& plan) {
  const auto& world = session.world.group();
  const int rank = world.rank();
  const bool trains = plan.roles.trains(rank), produces = plan.roles.produces(rank);
  Networks networks;
  on_all(world, [&] {
    if (produces)
      networks.encode_pipeline.emplace(plan.config, plan.pipeline, plan.data, plan.encoding, session.device,
                                       session.world.rank());
    if (trains) networks.unet = make_unet_for_run(plan), networks.ema = load_ema_start(plan);
    if (trains && plan.encoding.shape.has_tokens()) load_text_encoder(session, plan, networks);
  });
  if (told_to_stop(world)) return stopped_before_start(session);
  startup::done("networks");

  const auto& dir = plan.config.run.dir.value;
  if (plan.config.checkpoint.every)
    on_all(world, [&] {
      if (rank == plan.roles.trainers.front())
        check_disk_space(dir, checkpoint_bytes(*networks.unet, plan.config.ema.enabled), plan.config.checkpoint.keep);
    });
  const auto lease = open_run_folder(world, dir, config::dump_yaml(plan.config), plan.data.manifest, plan.start,
                                     plan.config.checkpoint.resume);
  const std::string role = plan.roles.all_in_one ? "" : trains ? "trainer" : "producer";
  open_log(session, dir, role, rank == (trains ? plan.roles.trainers.front() : plan.roles.producers.front()));
  return run_in_folder(session, dir, lease, role, hang_seconds(plan.config.guard.hang_timeout), [&] {
    phase::current = phase::loading;
    startup::done("run folder");
    if (session.is_root()) print_start(session, plan);
    const auto of_role = world.split(trains ? 0 : 1, rank);
    for (;;) {
      const End end = share_end(world, take_role(session, plan, networks, of_role, lease), plan.roles.trainers.front());
      if (!end.bad) return end.exit;
      startup::begin();
      phase::current = phase::loading;
      release_cached_memory(session.device);
      plan.start = roll_back(world, {dir, &lease}, plan.start, *end.bad, end.has_saved);
      if (told_to_stop(world)) return stopped_while_going_back(session, plan, lease);
      startup::done("checkpoint");
      if (trains) networks.unet = make_unet_for_run(plan);
    }
  });
}

int run_train(const CommandLine& line) {
  return run_ranks([&](World& world) {
    auto loaded = load_config<TrainConfig>(world, line, [](const auto& c, auto& report) { check(c, report); });
    if (loaded.printed) return 0;
    const auto& c = loaded.root;
    startup::begin();
    const auto session = start_session(world, c.run.device, c.guard.hang_timeout);
    TrainPlan plan = make_plan(session, c, loaded.report);
    if (line.dry_run) return say_what_would_be(session, plan);
    if (is_finished(plan)) return finish_without_training(session, plan);
    return run_roles(session, plan);
  });
}

}  // namespace

Command train_command() {
  return {"train",
          "train the U-Net, alone or under mpirun/srun",
          "[--config FILE]... run.dir=DIR model.pipeline=DIR data.train.path=ARCHIVES [key=value]...",
          {},
          false,
          run_train,
          schema_of<TrainConfig>,
          /*heeds_signals=*/true,
          /*on_ranks=*/true};
}

}  // namespace millrace
