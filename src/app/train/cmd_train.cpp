// train: ranks split into producers and trainers, or do both; see docs/architecture.md for the data flow.
#include "app_config.h"
#include "command.h"
#include "launch/gpu_sharing.h"
#include "launch/run_ranks.h"
#include "launch/run_watch.h"
#include "launch/session.h"
#include "millrace/comm/agree.h"
#include "millrace/core/phase.h"
#include "millrace/core/startup.h"
#include "run/disk_space.h"
#include "run/finish.h"
#include "run/run_folder.h"
#include "train/networks.h"
#include "train/start_table.h"
#include "train/train_plan.h"
#include "train/train_rounds.h"

namespace millrace {
namespace {

// Before the networks are made: a dry run tells of it, too.
void check_ema_start(const TrainPlan& plan) {
  const auto& path = plan.config.model.unet.ema_start;
  if (path && !plan.start.checkpoint && !fs::exists(*path))
    throw Error(Exit::io, fmt::format("model.unet.ema_start: {} is not there", *path),
                "a pipeline's folder, its unet folder, or a .safetensors file");
}

std::optional<std::string> complaint_about_ema_start(const TrainPlan& plan) {
  const auto& checkpoint = plan.start.checkpoint;
  if (!plan.config.model.unet.ema_start || !checkpoint || checkpoint->has("ema")) return std::nullopt;
  return "model.unet.ema_start is for the start of a run: the checkpoint has no EMA, and the one that begins now "
         "starts from its weights";
}

TrainPlan make_plan(const Session& session, const TrainConfig& config, config::Report& report) {
  const auto& world = session.world.group();
  TrainPlan plan{.config = config};
  on_all(world, [&] { plan_model(plan); });
  plan_roles(session, plan);
  check_gpus(session, plan.roles.trainers);
  plan_data(session, plan, report);
  plan.shuffle = plan_shuffle(session, config, plan.input.data, plan.input.encoding, plan.roles, plan.input.routing);
  const auto identity = make_identity(RunIdentity::Kind::unet, config::dump_yaml(config), plan.input.data, plan.unet,
                                      plan.pipeline.path(), describe_encoders(world, plan));
  plan.start = plan_start(world, config, identity, plan.input.data.manifest, plan.roles.trainers);
  on_root(world, [&] { check_ema_start(plan); });
  plan.warn_of(complaint_about_ema_start(plan));
  startup::done("checkpoint");
  return plan;
}

// The checkpoint has reached the duration.
bool is_finished(const TrainPlan& plan) {
  return plan.start.checkpoint && reached(plan.config.duration, plan.start.state.point());
}

int dry_run(const Session& session, const TrainPlan& plan) {
  if (!session.is_root()) return 0;
  print_start_table(session, plan);
  const auto first = fmt::format("step {}", plan.start.state.step + 1);
  print_dry_run(plan.config.run.dir.value,
                is_finished(plan) ? fmt::format("train nothing: step {} is the duration", plan.start.state.step)
                : plan.start.checkpoint
                    ? fmt::format("continue with {} after {}", first, plan.start.checkpoint->path().string())
                    : fmt::format("start with {}", first));
  return 0;
}

// Loads, then opens the run folder, then trains: weights that are missing or broken must not touch the folder.
int run_roles(const Session& session, const TrainPlan& plan, const config::Inputs& inputs, RunWatch& watch) {
  const auto& world = session.world.group();
  const auto& c = plan.config;
  LoadedNetworks networks(session, plan);
  if (told_to_stop(world)) return stopped_before_start(session);
  startup::done("networks");

  const auto& dir = c.run.dir.value;
  const int first_trainer = plan.roles.trainers.front(), first_producer = plan.roles.producers.front();
  on_all(world, [&] {
    if (world.rank() == first_trainer)
      check_disk_space(c, checkpoint_bytes(*networks.unet, c.ema.enabled), plan.start.state.point());
  });
  const auto role_of = [&](int rank) { return role_name(plan.roles, rank); };
  const auto role = role_of(world.rank());
  const auto lease = open_run_folder(world, dir, description_of(session, c, inputs, role, plan.micro_batch),
                                     plan.input.data.manifest, plan.start, c.checkpoint.resume);
  const int first_of_role = plan.roles.trains(world.rank()) ? first_trainer : first_producer;
  return run_in_folder(session, dir, lease, role_of, watch, [&] {
    open_log(session, dir, plan.roles.all_in_one ? "" : role, /*console=*/world.rank() == first_of_role,
             describe_work(plan.roles, plan.input.routing, world.rank()));
    phase::current = phase::loading;
    startup::done("run folder");
    if (session.is_root()) print_start_table(session, plan);
    return train_in_rounds(session, plan, networks, lease);
  });
}

int run_train(const CommandLine& line) {
  return run_ranks([&](World& world) {
    auto loaded = load_config<TrainConfig>(world, line, [](const auto& c, auto& report) { check(c, report); });
    if (loaded.printed) return 0;
    const auto& c = loaded.root;
    startup::begin();
    if (!line.dry_run) report_faults_to(world, c.run.dir.value);
    const auto session = start_session(world, c.run.device, c.guard, c.threads);
    choose_kernels(session.device, c.run.deterministic, c.model.fused_kernels);
    RunWatch watch(world, c.guard.hang_seconds());
    const TrainPlan plan = make_plan(session, c, loaded.report);
    const auto& dir = c.run.dir.value;
    if (is_finished(plan)) refuse_end_of_another_run(world.group(), dir, plan.start, c.duration);
    if (line.dry_run) return dry_run(session, plan);
    if (is_finished(plan)) {
      finish_without_training(world.group(), dir, plan.start, c.duration);
      return 0;
    }
    return run_roles(session, plan, line.inputs, watch);
  });
}

}  // namespace

Command train_command() {
  return {.name = "train",
          .summary = "train the U-Net, alone or under mpirun/srun",
          .usage = "[--config FILE]... run.dir=DIR model.pipeline=DIR data.train.path=ARCHIVES [key=value]...",
          .run = run_train,
          .schema = schema_of<TrainConfig>,
          .heeds_signals = true,
          .on_ranks = true};
}

}  // namespace millrace
