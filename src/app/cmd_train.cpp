// train: ranks split into producers and trainers, or do both; see docs/architecture.md for the data flow.
#include <fmt/ranges.h>
#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>

#include "app_config.h"
#include "command.h"
#include "millrace/checkpoint/restore.h"
#include "millrace/comm/fault.h"
#include "millrace/core/deadline.h"
#include "millrace/core/log.h"
#include "millrace/core/phase.h"
#include "millrace/core/startup.h"
#include "millrace/handoff/parcel_receiver.h"
#include "millrace/io/json.h"
#include "millrace/latents/cached_source.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/sample_loader.h"
#include "millrace/models/initialize.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/device.h"
#include "millrace/produce/encode_pipeline.h"
#include "millrace/produce/producer.h"
#include "millrace/produce/producer_thread.h"
#include "millrace/train/diffusion_task.h"
#include "millrace/train/loop.h"
#include "millrace/train/state_file.h"
#include "run/run_folder.h"
#include "run/session.h"
#include "run/shuffle_plan.h"
#include "run/validation_set.h"

namespace millrace {
namespace {

constexpr int handoff_slots = 4;
constexpr double producer_seconds = 600;  // for a producer to end, which may have an encoder batch in work

// What a trainer may wait for samples; the first ones come only after everything has started.
double start_seconds(const TrainConfig& config) {
  return 5 * hang_seconds(config.guard.hang_timeout);
}

// What every rank of the run knows before anything starts, and nothing is written before it is known.
struct Plan {
  const TrainConfig& config;
  PipelineFolder pipeline;
  EncodingPlan encoding = {};
  DataPlan data = {};
  Roles roles = {};
  Routing routing = {};
  ShufflePlan shuffle = {};
  int samples_per_stripe = 1;  // and step
  ParcelSize parcel = {};
  std::size_t parcel_bytes = 0;
  std::optional<ValidationPlan> validation = {};
  nlohmann::json identity = {};                     // of the run, in every checkpoint
  std::optional<CheckpointReader> checkpoint = {};  // to resume from
  RunState start = {};
};

nlohmann::json unet_config_of(const TrainConfig& config, const PipelineFolder& pipeline) {
  if (!config.model.unet.config) return pipeline.config("unet");
  try {
    return read_json_object(*config.model.unet.config);
  } catch (const Error& error) {
    throw Error(error.exit(), fmt::format("model.unet.config: {}", error.what()), error.hint());
  }
}

void check_shapes(const UNet2DConditionConfig& unet, const EncodingShape& encoding, config::Report& report) {
  if (2 * unet.in_channels != encoding.moments[0])
    report.problem("model.pipeline", fmt::format("the U-Net takes {} channels, the VAE makes {}", unet.in_channels,
                                                 encoding.moments[0] / 2));
  for (auto width : unet.cross_attention_dim)
    if (width != encoding.text[1]) {
      report.problem("model.pipeline",
                     fmt::format("the U-Net attends to embeddings of width {}, the text encoder makes {}", width,
                                 encoding.text[1]));
      break;
    }
  report.throw_if_problems();
}

Plan make_plan(const Session& session, const TrainConfig& config, config::Report& report) {
  const auto& world = session.world.group();
  Plan plan{.config = config, .pipeline = open_pipeline(world, config.model.pipeline.value)};
  plan.roles = on_all(world, [&, gpus = gpu_names(session)] { return plan_roles(gpus, config.roles); });
  plan.data = broadcast_data_plan(world, config.data.train, config.data, config.batch.global);
  startup::done("data");
  plan.encoding = broadcast_encoding_plan(world, config, plan.pipeline, plan.data.manifest,
                                          parse_dtype(config.encode.dtype, session.device));
  const int stripes = static_cast<int>(plan.data.stripes.stripes);
  on_all(world, [&] {
    check_shapes(UNet2DConditionConfig::from_json(unet_config_of(config, plan.pipeline)), plan.encoding.shape, report);
    plan.routing = plan_routing(plan.roles, stripes, config.batch.global, config.batch.micro);
  });
  plan.shuffle = plan_shuffle(session, config, plan.data, plan.encoding, plan.roles, plan.routing);
  plan.samples_per_stripe = config.batch.global / stripes;
  plan.parcel = plan_parcel_size(plan.samples_per_stripe);
  plan.parcel_bytes = plan_parcel_bytes(plan.parcel.samples(), plan.encoding.shape.moments, plan.encoding.shape.text);
  plan.validation = plan_validation(session, config, plan.pipeline, plan.roles, plan.encoding.shape);
  startup::done("plan");
  plan.identity = run_identity("unet", config, plan.data, unet_config_of(config, plan.pipeline), plan.pipeline.path());
  plan.checkpoint = open_start(world, config, plan.identity, plan.data.manifest);
  if (plan.checkpoint) plan.start = start_from(*plan.checkpoint, plan.identity);
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

void print_start(const Session& session, const Plan& plan) {
  const auto& c = plan.config;
  auto row = [](const char* name, const std::string& text) { log::info("  {:<12} {}", name, text); };
  log::info("millrace {} train", MILLRACE_VERSION);
  row("ranks",
      fmt::format("{} on {}: {}", session.world.size(),
                  fmt::join(std::set<std::string>(session.world.hosts().begin(), session.world.hosts().end()), ", "),
                  plan.roles.all_in_one ? "every rank trains and produces"
                                        : fmt::format("trainers {}, producers {}", fmt::join(plan.roles.trainers, " "),
                                                      fmt::join(plan.roles.producers, " "))));
  row("device", fmt::format("{}, {} threads a rank, model in {}", device_name(session.device), session.threads,
                            dtype_name(parse_dtype(c.model.dtype, session.device))));
  row("pipeline", fmt::format("{}, U-Net {}", c.model.pipeline.value,
                              plan.checkpoint                                  ? "from a checkpoint"
                              : c.model.unet.init == ModelConfig::Init::random ? "with fresh weights"
                                                                               : "pretrained"));
  row("data", fmt::format("{} archives, {} stripes in {} splits", plan.data.manifest.archives.size(),
                          plan.data.stripes.stripes, plan.data.stripes.splits.size()));
  row("shuffle", describe(plan.shuffle));
  row("batch", describe_batch(c.batch, plan.routing));
  row("encodings", describe(plan.encoding));
  row("handoff",
      fmt::format("parcels of {} samples, at most {}", plan.parcel.samples(), format_bytes(plan.parcel_bytes)));
  row("objective", fmt::format("{}, caption drop {}", to_string(c.objective.prediction), c.objective.caption_dropout));
  row("optimizer", fmt::format("AdamW lr {} wd {}, {}, EMA {}", c.optim.lr, c.optim.weight_decay,
                               to_string(c.parallel.strategy), c.ema.enabled ? std::to_string(c.ema.decay) : "off"));
  if (plan.validation) row("validation", describe(*plan.validation, c.validation));
  row("duration", fmt::format("{}, from step {}", to_string(c.duration), plan.start.step));
  row("run", c.run.dir.value);
  for (const auto& warning : memory_warnings(plan.shuffle)) log::warning("{}", warning);
}

// What a rank loads for its roles.
struct Networks {
  std::optional<EncodePipeline> encode_pipeline;  // of a producer
  UNet2DConditionModel unet{nullptr};             // of a trainer: in float32 on the host
};

// ---- producer ----------------------------------------------------------------------------------------------------

// A producer's life, until every trainer has said stop.
void produce_until_stopped(const Session& session, const Plan& plan, EncodePipeline& pipeline, int producer,
                           ParcelSender& sender) {
  pipeline.produce(sender,
                   {plan.routing.stripes_of_producer(producer), plan.routing.trainer_places(producer), plan.parcel},
                   stream_options(plan.config.data, session.threads), plan.start.cursors);
}

// The text embeddings of the empty caption, made by the first producer for everybody: f16 (77, C). From then on its
// cache is there for the others. `pipeline`: of a producer.
torch::Tensor broadcast_null_text(const Session& session, const Plan& plan, EncodePipeline* pipeline) {
  const int maker = plan.roles.producers.front();
  std::string bytes;
  if (session.world.rank() == maker) {
    const auto text = pipeline->null_text();
    pipeline->begin_cache(text);
    bytes.assign(static_cast<const char*>(text.data_ptr()), text.nbytes());
  }
  bytes = session.world.group().broadcast(bytes, maker);
  auto null_text = torch::empty(plan.encoding.shape.text, torch::kHalf);
  ensure(bytes.size() == null_text.nbytes(), "the empty caption's embeddings have the text encoder's shape");
  std::memcpy(null_text.data_ptr(), bytes.data(), bytes.size());
  return null_text;
}

int run_producer_role(const Session& session, const Plan& plan, EncodePipeline& pipeline, const Group& handoff) {
  if (plan.validation)
    produce_validation(session, *plan.validation, plan.pipeline, pipeline.networks(), plan.roles, handoff);
  const int self = position_in(plan.roles.producers, session.world.rank());
  broadcast_null_text(session, plan, &pipeline);
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
  return 0;
}

// ---- trainer -----------------------------------------------------------------------------------------------------

UNet2DConditionModel make_unet_for_run(const Plan& plan) {
  const auto& c = plan.config;
  const auto json = unet_config_of(c, plan.pipeline);
  UNet2DConditionModel unet{nullptr};
  if (plan.checkpoint) {
    unet = UNet2DConditionModel(UNet2DConditionConfig::from_json(json));  // its weights come from there
  } else if (c.model.unet.init == ModelConfig::Init::pretrained) {
    unet = UNet2DConditionModel(UNet2DConditionConfig::from_json(json));
    load_weights(*unet, plan.pipeline.component("unet"), diffusers_stem);
  } else {
    unet = make_unet(json, c.run.seed);
  }
  unet->train();
  unet->set_gradient_checkpointing(c.model.gradient_checkpointing);
  return unet;
}

// Of this trainer's local batches, which were encoded before.
Validation start_validation(const Session& session, const Plan& plan, const UNet2DConditionModel& unet,
                            const DiffusionTask::Options& training, std::vector<EncodedBatch> batches) {
  Validation::Options options;
  options.every = plan.config.validation.every;
  options.objective = training.objective;
  options.samples = std::int64_t{plan.validation->batches} * plan.validation->global_batch;
  options.micro_batch = plan.config.batch.micro;
  options.scaling_factor = training.scaling_factor;
  options.shift_factor = training.shift_factor;
  options.device = session.device;
  options.dtype = training.dtype;
  return {unet, NoiseSchedule(trained_scheduler(plan.pipeline.scheduler(), training.objective)), std::move(batches),
          options};
}

std::vector<RankOnHost> on_hosts(const std::vector<int>& ranks, const Session& session) {
  std::vector<RankOnHost> places;
  for (const int rank : ranks) places.push_back({rank, session.world.hosts()[static_cast<std::size_t>(rank)]});
  return places;
}

// A producer that sends nothing may be unable to say so itself.
void accuse(const Session& session, const Plan& plan, const Overdue& overdue, const Error& error) {
  const int rank = plan.roles.producers[overdue.producer];
  fault::write_about({plan.config.run.dir.value, rank, session.world.hosts()[rank], "producer"}, error, "silent");
}

LoopResult train(const Session& session, const Plan& plan, UNet2DConditionModel unet, const Group& trainers,
                 ParcelReceiver& receiver, const torch::Tensor& null_text, std::vector<EncodedBatch> validation_batches,
                 const RunLease& lease) {
  const auto& c = plan.config;
  auto originals = plan.checkpoint ? std::map<std::string, torch::Tensor>() : weights_of(*unet);
  unet->to(session.device, parse_dtype(c.model.dtype, session.device));
  const auto shards = plan_shards(c.parallel, trainers.size(), session.world.local_size());
  ShardedModel model(*unet, blocks_of(parameter_blocks(*unet)), shards, c.parallel, trainers,
                     plan.checkpoint ? ShardedModel::Start::restored : ShardedModel::Start::of_rank_0);
  ShardedAdamW optimizer(model, c.optim, c.ema);
  if (plan.checkpoint) {
    restore(*plan.checkpoint, optimizer);
  } else {
    optimizer.start_from(std::move(originals));
  }

  const auto vae = AutoencoderKLConfig::from_json(plan.pipeline.config("vae"));
  DiffusionTask::Options options;
  options.objective = c.objective;
  options.seed = c.run.seed;
  options.global_batch = c.batch.global;
  options.scaling_factor = vae.scaling_factor;
  options.shift_factor = vae.shift_factor.value_or(0);
  options.null_text = null_text;
  options.device = session.device;
  options.dtype = parse_dtype(c.model.dtype, session.device);
  options.producers = plan.routing.producers_of(trainers.rank());
  options.slots = handoff_slots;
  DiffusionTask task(unet, NoiseSchedule(trained_scheduler(plan.pipeline.scheduler(), c.objective)),
                     BatchReceiver(receiver, plan.routing.producer_places(trainers.rank()), plan.samples_per_stripe),
                     receiver, options);
  startup::done(plan.checkpoint ? "restore" : "shards");
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
       .manifest_extra = plan.identity,
       .max_wait_seconds = hang_seconds(c.guard.hang_timeout),
       .on_silent_producer = [&](const Overdue& overdue, const Error& error) { accuse(session, plan, overdue, error); },
       .trainer_ranks = on_hosts(plan.roles.trainers, session),
       .producer_ranks = on_hosts(plan.roles.producers, session),
       .lease = &lease,
       .resumed_from = path_of(plan.checkpoint),
       .validation = validation ? &*validation : nullptr},
      with_ledger(plan.start, plan.checkpoint, trainers));
}

// What is left to do once the run's state is safe must not undo that: producers that do not stop are left behind.
int finish(const Group& trainers, const Plan& plan, const RunLease& lease, const LoopResult& result,
           ParcelReceiver& receiver, const Group& handoff) {
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
  return exit;
}

int run_trainer_role(const Session& session, const Plan& plan, UNet2DConditionModel unet, const Group& trainers,
                     const Group& handoff, const RunLease& lease) {
  std::vector<EncodedBatch> validation;
  if (plan.validation)
    validation = collect_validation(session, *plan.validation, plan.roles, handoff, start_seconds(plan.config));
  startup::done("validation");
  const auto null_text = broadcast_null_text(session, plan, nullptr);
  const auto producers = pick(plan.roles.producers, plan.routing.producers_of(trainers.rank()));
  const auto receiver = make_mpi_receiver(handoff, producers, {plan.parcel_bytes, handoff_slots});
  const auto result =
      train(session, plan, std::move(unet), trainers, *receiver, null_text, std::move(validation), lease);
  return finish(trainers, plan, lease, result, *receiver, handoff);
}

// One rank does both, with the same parcels in between.
int run_both_roles(const Session& session, const Plan& plan, Networks& networks, const Group& trainers,
                   const RunLease& lease) {
  std::vector<EncodedBatch> validation;
  if (plan.validation)
    validation = make_validation(session, *plan.validation, plan.pipeline, networks.encode_pipeline->networks(),
                                 start_seconds(plan.config));
  startup::done("validation");
  const auto null_text = broadcast_null_text(session, plan, &*networks.encode_pipeline);
  ProducerThread producer({plan.parcel_bytes, handoff_slots}, session.threads, "producer", [&](ParcelSender& sender) {
    produce_until_stopped(session, plan, *networks.encode_pipeline, trainers.rank(), sender);
  });
  try {
    const auto result =
        train(session, plan, networks.unet, trainers, producer.receiver(), null_text, std::move(validation), lease);
    return finish(trainers, plan, lease, result, producer.receiver(), Group());
  } catch (...) {
    fault::leaving();  // before the producer's thread is waited for
    throw;
  }
}

// ---- the whole --------------------------------------------------------------------------------------------------

// The checkpoint has reached the duration.
bool is_finished(const Plan& plan) {
  return plan.checkpoint && reached(plan.config.duration, plan.start.point());
}

int finish_without_training(const Session& session, const Plan& plan) {
  // Another instance may still be at work; a folder that nobody holds is left as it is.
  const fs::path dir = plan.config.run.dir.value;
  std::int64_t held = session.is_root() && fs::exists(dir / "LEASE") ? 1 : 0;
  session.world.group().all_reduce_max(std::span(&held, 1));
  std::optional<RunLease> lease;
  if (held) lease.emplace(RunLease::acquire(session.world.group(), dir));
  on_root(session.world.group(), [&] {
    log::info("{} has reached step {}, and duration is {}: nothing to train", plan.checkpoint->path().string(),
              plan.start.step, to_string(plan.config.duration));
    StateFile(dir).write("done", plan.start.point(), path_of(plan.checkpoint));
  });
  return 0;
}

int say_what_would_be(const Session& session, const Plan& plan) {
  if (!session.is_root()) return 0;
  print_start(session, plan);
  const auto first = fmt::format("step {}", plan.start.step + 1);
  print_dry_run(plan.config.run.dir.value,
                is_finished(plan) ? fmt::format("train nothing: step {} is the duration", plan.start.step)
                : plan.checkpoint ? fmt::format("continue with {} after {}", first, plan.checkpoint->path().string())
                                  : fmt::format("start with {}", first));
  return 0;
}

// Loads, then opens the run folder, then trains: weights that are missing or broken must not touch the folder.
int run_roles(const Session& session, const Plan& plan) {
  const auto& world = session.world.group();
  const int rank = world.rank();
  const bool trains = plan.roles.trains(rank), produces = plan.roles.all_in_one || !trains;
  Networks networks;
  on_all(world, [&] {
    if (produces)
      networks.encode_pipeline.emplace(plan.config, plan.pipeline, plan.data, plan.encoding, session.device,
                                       session.world.rank());
    if (trains) networks.unet = make_unet_for_run(plan);
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
                                     plan.config.checkpoint.resume, plan.checkpoint);
  const std::string role = plan.roles.all_in_one ? "" : trains ? "trainer" : "producer";
  open_log(session, dir, role, rank == (trains ? plan.roles.trainers.front() : plan.roles.producers.front()));
  return run_in_folder(session, dir, lease, role, hang_seconds(plan.config.guard.hang_timeout), [&] {
    phase::current = phase::loading;
    startup::done("run folder");
    if (session.is_root()) print_start(session, plan);
    const auto of_role = world.split(trains ? 0 : 1, rank);
    if (plan.roles.all_in_one) return run_both_roles(session, plan, networks, of_role, lease);
    const auto handoff = world.duplicate();
    return trains ? run_trainer_role(session, plan, std::move(networks.unet), of_role, handoff, lease)
                  : run_producer_role(session, plan, *networks.encode_pipeline, handoff);
  });
}

int run_train(const CommandLine& line) {
  return run_ranks([&](World& world) {
    auto loaded = load_config<TrainConfig>(world, line, [](const auto& c, auto& report) { check(c, report); });
    if (loaded.printed) return 0;
    const auto& c = loaded.root;
    startup::begin();
    const auto session = start_session(world, c.run.device, c.guard.hang_timeout);
    const Plan plan = make_plan(session, c, loaded.report);
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
