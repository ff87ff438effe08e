// train-autoencoder: the VAE on the images themselves, data-parallel, by the same loop as the U-Net.
#include <filesystem>
#include <optional>
#include <string>

#include "app_config.h"
#include "command.h"
#include "export/export.h"
#include "launch/broadcast_plan.h"
#include "launch/gpu_sharing.h"
#include "launch/run_ranks.h"
#include "launch/run_watch.h"
#include "launch/session.h"
#include "millrace/comm/agree.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/core/log.h"
#include "millrace/core/run_files.h"
#include "millrace/core/startup.h"
#include "millrace/loader/data_plan.h"
#include "millrace/loader/sample_loader.h"
#include "millrace/loader/sources.h"
#include "millrace/models/pipeline_export.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/device.h"
#include "millrace/nn/gpu_watch.h"
#include "millrace/train/loop.h"
#include "output.h"
#include "run/disk_space.h"
#include "run/finish.h"
#include "run/run_folder.h"
#include "train/complaints.h"
#include "train/micro_batch.h"
#include "train/networks.h"
#include "train/routing.h"
#include "train/sharded_training.h"
#include "train/start_table.h"
#include "train/vae_export.h"

namespace millrace {
namespace {

// 1 / the standard deviation of the latents with the weights that are exported by default, and with the raw ones, over
// all ranks' present local batches. In every checkpoint, so that an export of any of them has its own.
nlohmann::json measure_scaling(AutoencoderTask& task, ShardedAdamW& optimizer, const Group& group) {
  const double of_raw = 1 / task.latent_deviation(group);
  if (!optimizer.has_ema()) return {{scaling_factor_key, of_raw}};
  double of_ema = 0;
  optimizer.with_ema([&] { of_ema = 1 / task.latent_deviation(group); });
  return {{scaling_factor_key, of_ema}, {scaling_factor_raw_key, of_raw}};
}

// What every rank knows before anything starts, and nothing is written before it is known.
struct AutoencoderPlan {
  const AutoencoderTrainConfig& config;
  PipelineFolder pipeline;
  Roles roles = {};
  DataPlan data = {};
  Routing routing = {};
  int micro_batch = 1;
  ShardPlan shards = {};
  Start start = {};
  bool is_finished = false;                   // all was trained and exported before
  std::optional<double> scaling_factor = {};  // of latents; nothing: it is measured

  int stripes() const { return static_cast<int>(data.stripes.stripes); }
};

AutoencoderPlan plan_autoencoder(const Session& session, const AutoencoderTrainConfig& c) {
  const auto& world = session.world.group();
  AutoencoderPlan plan{.config = c, .pipeline = open_pipeline(world, c.model.pipeline.value)};
  on_root(world, [&] { check_export_folder(c.run.dir.value, plan.pipeline.path()); });
  std::int64_t images_of_one_pass = 0;
  on_all(world, [&] {
    const auto vae = AutoencoderKLConfig::from_json(plan.pipeline.config("vae"));
    (void)vae.latent_side(c.transform.resolution);  // which has to be whole
    images_of_one_pass = vae.images_of_one_pass(c.transform.resolution);
    plan.scaling_factor =
        c.autoencoder.chosen_scaling_factor(c.model.init == ModelConfig::Init::pretrained, vae.scaling_factor);
  });
  plan.data = broadcast_data_plan(world, c.data.train, c.data, c.batch.global);
  startup::done("data");
  on_all(world, [&] {
    plan.roles = all_in_one_roles(session.world.size());
    plan.routing = plan_routing(plan.roles, plan.stripes());
    plan.micro_batch = micro_batch_of_share(plan.routing, c.batch.global, c.batch.micro);
    plan.shards = plan_shards(c.parallel, session.world.hosts());
    check_passes(plan.routing, plan.shards, plan.micro_batch, images_of_one_pass);
  });
  check_gpus(session, plan.roles.trainers);
  const auto identity = make_identity(RunIdentity::Kind::vae, config::dump_yaml(c), plan.data,
                                      plan.pipeline.config("vae"), plan.pipeline.path());
  plan.start = plan_start(world, c, identity, plan.data.manifest, plan.roles.trainers);
  plan.is_finished = broadcast_from_root(world, [&] {
    const auto& checkpoint = plan.start.checkpoint;
    return checkpoint && reached(c.duration, plan.start.state.point()) &&
           holds_the_end(c.run.dir.value, checkpoint->path());
  });
  startup::done("checkpoint");
  return plan;
}

void warn_of_another_scaling_factor(const AutoencoderPlan& plan) {
  if (!plan.scaling_factor || !plan.start.checkpoint) return;
  const auto before = plan.start.checkpoint->manifest().value(scaling_factor_key, nlohmann::json());
  if (before.is_number() && before.get<double>() != *plan.scaling_factor)
    log::warning("scaling_factor: {} in the checkpoint, {} from now on (autoencoder.scaling_factor={})",
                 before.get<double>(), *plan.scaling_factor, plan.config.autoencoder.scaling_factor);
}

void print_start(const Session& session, const AutoencoderPlan& plan) {
  const auto& c = plan.config;
  log::info("train-autoencoder: {} ranks with {} threads each, batch {}, {} archives, {} stripes, {} from step {}",
            session.world.size(), session.threads, c.batch.global, plan.data.manifest.archives.size(), plan.stripes(),
            to_string(c.duration), plan.start.state.step);
  if (const auto shares = describe_shares(plan.routing); !shares.empty()) log::info("  of the ranks: {}", shares);
  if (plan.scaling_factor)
    log::info("  scaling_factor: {}, which is not measured (autoencoder.scaling_factor={})", *plan.scaling_factor,
              c.autoencoder.scaling_factor);
  warn_of_another_scaling_factor(plan);
  if (const auto missing = find_missing_part(plan.pipeline))
    log::info("  the end: RUN/pipeline will be a VAE alone, as {} has no {}", plan.pipeline.path().string(), *missing);
  warn(complaint_about_warmup(c.optim, c.duration, c.batch.global, plan.start.state.point()));
  warn(complaint_about_shares(plan.routing));
}

int dry_run(const Session& session, const AutoencoderPlan& plan) {
  if (!session.is_root()) return 0;
  print_start(session, plan);
  print_dry_run(plan.config.run.dir.value,
                plan.is_finished ? fmt::format("train nothing: step {} is the duration", plan.start.state.step)
                                 : fmt::format("train from step {}", plan.start.state.step));
  return 0;
}

std::string next_step(const ExportKind kind, const fs::path& out) {
  return kind == ExportKind::pipeline ? fmt::format("train the U-Net with model.pipeline={}", out.string())
                                      : fmt::format("put {} into a pipeline folder, as its vae", out.string());
}

int finish(const Session& session, const AutoencoderPlan& plan, const RunLease& lease, const LoopResult& result,
           const Group& group) {
  log::set_step(0);
  const fs::path dir = plan.config.run.dir.value;
  const auto& resume = plan.config.checkpoint.resume;
  if (!result.finished) return finish_run(group, dir, lease, result, resume, {});
  ensure(result.checkpoint.has_value(), "a finished run has a checkpoint");
  if (!session.is_root()) return 0;
  const auto out = export_of(dir);
  const auto checkpoint = CheckpointReader::open(*result.checkpoint);
  export_vae(checkpoint, dir);
  const auto kind = export_kind(checkpoint);
  finish_run(Group(), dir, lease, result, resume, [&] { return next_step(kind, out); });
  const double factor = scaling_factor_of(checkpoint);
  say("  scaling_factor  {:.5f} ({}), written to {}\n", factor,
      plan.scaling_factor == factor ? "not measured" : "1 / the latents' standard deviation",
      (out / (kind == ExportKind::pipeline ? "vae/config.json" : "config.json")).string());
  return 0;
}

nlohmann::json scaling_of(const AutoencoderPlan& plan, AutoencoderTask& task, ShardedAdamW& optimizer,
                          const Group& group) {
  const auto& chosen = plan.scaling_factor;
  if (!chosen) return measure_scaling(task, optimizer, group);
  return {{scaling_factor_key, *chosen}, {scaling_factor_raw_key, *chosen}};
}

int train(const Session& session, const AutoencoderPlan& plan, AutoencoderKL vae, const Group& group,
          const RunLease& lease) {
  const auto& c = plan.config;
  const fs::path dir = c.run.dir.value;
  const auto dtype = parse_dtype(c.model.dtype, session.device);
  ShardedTraining training(
      *vae, parameter_names(*vae),
      {plan.shards, c.parallel, c.optim, c.ema, session.device, dtype, c.model.channels_last.value}, group,
      plan.start.checkpoint);
  startup::done(plan.start.checkpoint ? "restore" : "shards");
  SampleLoader loader(c.data, c.transform, plan.data,
                      {.seed = c.run.seed, .rejected = dir / run_file::rejected, .rank = session.world.rank()});
  const auto source = make_source(c.data.train, plan.data.manifest, c.transform.resolution, c.data.index);
  const auto own = plan.routing.stripes_of_trainer(group.rank());
  auto stream = loader.start(*source, own, make_stream_options(c.data, session.threads), plan.start.state.cursors);

  AutoencoderTask task(vae, stream,
                       {c.autoencoder, c.run.seed, c.batch.global, plan.micro_batch, own,
                        c.batch.global / plan.stripes(), session.device, dtype});
  const auto loop = c.loop(identity_of_losses(plan.start.identity));
  const auto result = run_loop({.task = task,
                                .model = training.model,
                                .optimizer = training.optimizer,
                                .trainers = group,
                                .config = loop,
                                .optim = c.optim,
                                .data = plan.data,
                                .max_bad_share = c.data.max_bad_share,
                                .device = session.device,
                                .manifest_extra = plan.start.identity.to_json(),
                                .trainer_ranks = on_hosts(session, plan.roles.trainers),
                                .gpu_uuid = gpu_uuid(session.device),
                                .lease = &lease,
                                .resumed_from = plan.start.path(),
                                .measure = [&] { return scaling_of(plan, task, training.optimizer, group); }},
                               state_with_ledger(plan.start, group));
  return finish(session, plan, lease, result, group);
}

// Loads, then opens the run folder, then trains: weights that are missing or broken must not touch the folder.
int run_trainers(const Session& session, const AutoencoderPlan& plan, const config::Inputs& inputs, RunWatch& watch) {
  const auto& c = plan.config;
  const auto group = session.world.group().duplicate();
  auto vae = on_all(group, [&] { return make_vae_for_run(c, plan.pipeline, plan.start); });
  if (told_to_stop(group)) return stopped_before_start(session);
  startup::done("networks");
  const fs::path dir = c.run.dir.value;
  on_root(group, [&] { check_disk_space(c, checkpoint_bytes(*vae, c.ema.enabled), plan.start.state.point()); });
  const auto role_of = [](int) { return "trainer"; };
  const auto lease =
      open_run_folder(group, dir, description_of(session, c, inputs, role_of(group.rank()), plan.micro_batch),
                      plan.data.manifest, plan.start, c.checkpoint.resume);
  return run_in_folder(session, dir, lease, role_of, watch, [&] {
    open_log(session, dir, "", session.is_root(), describe_work(plan.roles, plan.routing, group.rank()));
    if (session.is_root()) print_start(session, plan);
    return train(session, plan, vae, group, lease);
  });
}

int run_train_autoencoder(const CommandLine& line) {
  return run_ranks([&](World& world) {
    const auto loaded =
        load_config<AutoencoderTrainConfig>(world, line, [](const auto& c, auto& report) { check(c, report); });
    if (loaded.printed) return 0;
    const auto& c = loaded.root;
    startup::begin();
    if (!line.dry_run) report_faults_to(world, c.run.dir.value);
    const auto session = start_session(world, c.run.device, c.guard, c.threads);
    choose_kernels(session.device, c.run.deterministic, c.model.fused_kernels);
    RunWatch watch(world, c.guard.hang_seconds());
    const AutoencoderPlan plan = plan_autoencoder(session, c);
    const auto& dir = c.run.dir.value;
    if (plan.is_finished) refuse_end_of_another_run(world.group(), dir, plan.start, c.duration);
    if (line.dry_run) return dry_run(session, plan);
    if (plan.is_finished) {
      finish_without_training(world.group(), dir, plan.start, c.duration);
      return 0;
    }
    return run_trainers(session, plan, line.inputs, watch);
  });
}

}  // namespace

Command train_autoencoder_command() {
  return {.name = "train-autoencoder",
          .summary = "train the VAE on images: reconstruction + KL",
          .usage = "run.dir=DIR model.pipeline=DIR data.train.path=ARCHIVES [key=value]...",
          .run = run_train_autoencoder,
          .schema = schema_of<AutoencoderTrainConfig>,
          .heeds_signals = true,
          .on_ranks = true};
}

}  // namespace millrace
