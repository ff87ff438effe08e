// train-autoencoder: the VAE on the images themselves, data-parallel, by the same loop as the U-Net.
#include <fmt/ranges.h>
#include <filesystem>
#include <set>

#include "command.h"
#include "config.h"
#include "export.h"
#include "millrace/core/log.h"
#include "millrace/models/initialize.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/device.h"
#include "millrace/train/loop.h"
#include "run_folder.h"
#include "session.h"

namespace millrace {
namespace {

// In float32 on the host.
AutoencoderKL start_vae(const AutoencoderTrainConfig& c, const PipelineFolder& pipeline) {
  auto vae = make_vae(pipeline.config("vae"), c.run.seed);
  if (c.model.init == ModelConfig::Init::pretrained) load_weights(*vae, pipeline.component("vae"), diffusers_stem);
  vae->train();
  return vae;
}

// Standard deviation of the latents with the weights that are exported, over all ranks' present shares.
double measure_deviation(AutoencoderTask& task, ShardedAdamW& optimizer, const Group& group) {
  double square = 0;
  auto measure = [&] { square = std::pow(task.latent_deviation(), 2); };
  if (optimizer.has_ema()) {
    optimizer.with_ema(measure);
  } else {
    measure();
  }
  group.all_reduce_sum(std::span(&square, 1));
  return std::sqrt(square / group.size());
}

int train(const Session& session, const AutoencoderTrainConfig& c) {
  const auto group = session.world.group().duplicate();
  const auto pipeline = PipelineFolder::open(c.model.pipeline.value);
  const auto vae_config = AutoencoderKLConfig::from_json(pipeline.config("vae"));
  if (c.transform.resolution % vae_config.factor() != 0)
    fail(Exit::usage, "transform.resolution = {} is not a multiple of the VAE's factor {}", c.transform.resolution,
         vae_config.factor());
  const auto data = share_data_plan(group, c.data.train, c.data, c.batch.global);
  const int stripes = static_cast<int>(data.stripes.stripes);
  Roles roles = plan_roles(std::vector<std::string>(session.world.size()), {});
  const auto routing = plan_routing(roles, stripes, c.batch.global, c.batch.micro);

  const std::filesystem::path dir = c.run.dir.value;
  open_run_folder(group, dir, config::dump_yaml(c));
  log::init({"", session.world.rank(), session.is_root(),
             (dir / "log" / fmt::format("rank-{:05d}.log", session.world.rank())).string()});
  const auto identity = run_identity("vae", c, data, pipeline.config("vae"), pipeline.path());
  const auto checkpoint = open_start(group, c, identity, data.manifest);
  const RunState start = checkpoint ? checkpoint->state() : RunState{};
  write_archives(group, dir, data.manifest);

  auto vae = start_vae(c, pipeline);
  auto originals = weights_of(*vae);
  vae->to(session.device, parse_dtype(c.model.dtype, session.device));
  ShardedModel model(*vae, blocks_of(*vae), plan_shards(c.parallel, group.size(), session.world.local_size()),
                     c.parallel, group);
  ShardedAdamW optimizer(model, c.optim, c.ema);
  optimizer.start_from(std::move(originals));
  if (checkpoint) restore(*checkpoint, optimizer);

  const Filter filter(c.data.train.filters);
  const auto source = make_source(c.data.train, data.manifest, c.transform.resolution, c.data.index);
  const Deal deal(c.run.seed, data.stripes);
  StreamOptions stream_options;
  stream_options.threads = c.data.threads.value_or(session.threads);
  stream_options.block = block_size(c.data.shuffle_buffer, data.stripes.stripes);
  RejectedList rejected(dir / "rejected", session.world.rank(), data.manifest);
  stream_options.rejected = &rejected;
  StripeStream stream(deal, *source,
                      {c.run.seed, c.data.images, c.transform, nullptr, filter.empty() ? nullptr : &filter},
                      stream_options);
  const auto own = routing.stripes_of_trainer(group.rank());
  for (auto stripe : own)
    stream.add(stripe, start.cursors.contains(stripe) ? start.cursors.at(stripe) : StripeCursor{});

  AutoencoderTask task(vae, stream,
                       {c.autoencoder, c.run.seed, c.batch.global, own, c.batch.global / stripes, session.device,
                        parse_dtype(c.model.dtype, session.device)});
  if (session.is_root())
    log::info("train-autoencoder: {} ranks, batch {}, {} archives, {} stripes, {} from step {}", group.size(),
              c.batch.global, data.manifest.archives.size(), stripes, to_string(c.duration), start.step);
  const auto loop = c.loop();
  const auto result = run_loop(
      {task, model, optimizer, group, loop, c.optim, data, c.data.max_bad_share, 0, session.device, identity}, start);
  log::set_step(0);
  if (!result.finished) {
    if (session.is_root()) {
      write_state(dir, "requeue", result);
      print_footer(dir, result, false, "the same command again: it resumes from the checkpoint");
    }
    return static_cast<int>(Exit::requeue);
  }

  if (task.refs().empty()) task.next_batch();  // resumed at the end: nothing was trained
  const double scaling = 1 / measure_deviation(task, optimizer, group);
  if (session.is_root()) {
    write_state(dir, "done", result);
    const auto out = dir / "pipeline";
    std::filesystem::remove_all(out);
    if (result.checkpoint) {
      ExportRequest request;
      request.checkpoint = *result.checkpoint;
      request.out = out;
      request.scaling_factor = scaling;
      export_checkpoint(request);
    }
    print_footer(dir, result, false, fmt::format("train the U-Net with model.pipeline={}", out.string()));
    fmt::print("  scaling_factor  {:.5f} (1 / the latents' standard deviation), written to vae/config.json\n", scaling);
  }
  return 0;
}

int run_train_autoencoder(const CommandLine& line) {
  auto loaded = load_config<AutoencoderTrainConfig>(
      line, [](const AutoencoderTrainConfig& c, config::Report& report) { check(c, report); });
  if (loaded.printed || line.dry_run) return 0;
  World world;
  const auto session = start_session(world, loaded.root.run.device, loaded.root.guard.hang_timeout);
  return run_role(session, [&] { return train(session, loaded.root); });
}

}  // namespace

Command train_autoencoder_command() {
  return {"train-autoencoder",
          "train the VAE on images: reconstruction + KL",
          "run.dir=DIR model.pipeline=DIR data.train.path=ARCHIVES [key=value]...",
          {},
          false,
          run_train_autoencoder,
          schema_of<AutoencoderTrainConfig>};
}

}  // namespace millrace
