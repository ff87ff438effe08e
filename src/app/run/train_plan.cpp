#include "run/train_plan.h"

#include "millrace/comm/agree.h"
#include "millrace/core/startup.h"
#include "millrace/generate/prompts.h"
#include "millrace/io/json.h"
#include "millrace/nn/device.h"

namespace millrace {

static void check_shapes(const UNet2DConditionConfig& unet, const EncodingPlan& encoding, config::Report& report) {
  const auto channels = encoding.shape.moments[0];
  if (2 * unet.in_channels != channels)
    report.problem("model.pipeline",
                   fmt::format("the U-Net takes {} channels, the VAE makes {}", unet.in_channels, channels / 2));
  for (const auto width : unet.cross_attention_dim)
    if (width != encoding.text_width) {
      report.problem("model.pipeline",
                     fmt::format("the U-Net attends to embeddings of width {}, the text encoder makes {}", width,
                                 encoding.text_width));
      break;
    }
  report.throw_if_problems();
}

// Prompts are used in turn; the seeds depend on nothing, so that pictures of all steps compare.
static std::vector<ImageRequest> plan_pictures(const SamplesConfig& config) {
  if (!config.prompts) return {};
  std::vector<ImageRequest> prompts;
  try {
    prompts = read_prompts(*config.prompts, {});
  } catch (const Error& error) {
    throw Error(error.exit(), fmt::format("samples.{}", error.what()), error.hint());
  }
  std::vector<ImageRequest> samples;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(config.count); ++i) {
    samples.push_back(prompts[i % prompts.size()]);
    samples.back().seed = i;
  }
  return samples;
}

void plan_model(TrainPlan& plan) {
  const auto& model = plan.config.model;
  plan.samples = plan_pictures(plan.config.samples);
  plan.pipeline = PipelineFolder::open(model.pipeline.value);
  if (!model.unet.config) {
    plan.unet = plan.pipeline.config("unet");
    return;
  }
  try {
    plan.unet = read_json_object(*model.unet.config);
  } catch (const Error& error) {
    throw Error(error.exit(), fmt::format("model.unet.config: {}", error.what()), error.hint());
  }
}

void plan_roles(const Session& session, TrainPlan& plan) {
  const auto gpus = gpu_names(session);
  on_all(session.world.group(), [&] {
    plan.roles = plan_roles(gpus, plan.config.roles);
    std::vector<std::string> hosts;
    for (const int trainer : plan.roles.trainers) hosts.push_back(session.world.hosts()[trainer]);
    plan.shards = plan_shards(plan.config.parallel, hosts);
  });
}

void plan_samples(const Session& session, TrainPlan& plan, config::Report& report) {
  const auto& world = session.world.group();
  const auto& c = plan.config;
  plan.data = broadcast_data_plan(world, c.data.train, c.data, c.batch.global);
  startup::done("data");
  plan.encoding =
      broadcast_encoding_plan(world, c, plan.pipeline, plan.data.manifest, parse_dtype(c.encode.dtype, session.device));
  const auto& shape = plan.encoding.shape;
  const int stripes = static_cast<int>(plan.data.stripes.stripes);
  on_all(world, [&] {
    check_shapes(UNet2DConditionConfig::from_json(plan.unet), plan.encoding, report);
    plan.routing = plan_routing(plan.roles, stripes, c.batch.global, c.batch.micro);
  });
  plan.samples_per_stripe = c.batch.global / stripes;
  plan.parcel = plan_parcel_size(plan.samples_per_stripe);
  plan.parcel_bytes = plan_parcel_bytes(plan.parcel.samples(), shape);
  plan.validation = plan_validation(session, c, plan.pipeline, plan.roles, shape);
  startup::done("plan");
}

std::string describe(const DataPlan& data) {
  return fmt::format("{} archives, {} stripes in {} splits", data.manifest.archives.size(), data.stripes.stripes,
                     data.stripes.splits.size());
}

}  // namespace millrace
