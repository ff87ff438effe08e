#include "run/train_plan.h"

#include "millrace/comm/agree.h"
#include "millrace/core/startup.h"
#include "millrace/diffusion/sampler.h"
#include "millrace/generate/prompts.h"
#include "millrace/io/json.h"
#include "millrace/nn/device.h"
#include "run/micro_batch.h"

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

// By the sampler that the exported folder names, and by DDIM where there is none here. Made once for its complaints:
// the first picture may be hours away.
static SamplingPlan plan_sampling(const SchedulerConfig& scheduler, const SamplesConfig& config) {
  SamplingPlan plan{.scheduler = find_refusal(scheduler) ? scheduler.with_class(SchedulerClass::ddim) : scheduler,
                    .steps = config.steps,
                    .guidance_scale = config.guidance_scale};
  try {
    (void)make_sampler(plan.scheduler, plan.steps);
  } catch (const Error& error) {
    const auto* const key = error.exit() == Exit::usage ? "samples.steps" : "samples.prompts";
    throw Error(error.exit(), fmt::format("{}: {}", key, error.what()), error.hint());
  }
  return plan;
}

static nlohmann::json load_unet_config(const TrainPlan& plan) {
  const auto& file = plan.config.model.unet.config;
  if (!file) return plan.pipeline.config("unet");
  try {
    return read_json_object(*file);
  } catch (const Error& error) {
    throw Error(error.exit(), fmt::format("model.unet.config: {}", error.what()), error.hint());
  }
}

void plan_model(TrainPlan& plan) {
  const auto& c = plan.config;
  plan.samples = plan_pictures(c.samples);
  plan.pipeline = PipelineFolder::open(c.model.pipeline.value);
  plan.unet = load_unet_config(plan);
  const auto folders = plan.pipeline.scheduler();
  plan.scheduler = trained_scheduler(folders, c.objective);
  plan.problems = list_objective_problems(folders, c.objective);
  if (!plan.samples.empty()) plan.sampling = plan_sampling(plan.scheduler, c.samples);
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
    plan.routing = plan_routing(plan.roles, stripes);
  });
  plan.micro_batch = plan_micro_batch(session, plan);
  on_all(world, [&] { check_micro_batch(plan.routing, c.batch.global, plan.micro_batch); });
  plan.samples_per_stripe = c.batch.global / stripes;
  plan.parcel = plan_parcel_size(plan.samples_per_stripe);
  plan.parcel_bytes = plan_parcel_bytes(plan.parcel.samples(), shape);
  plan.validation = plan_validation(session, c, plan.pipeline, plan.roles, shape);
  startup::done("plan");
}

std::string describe(const DataPlan& data) {
  const auto unseen = unseen_after_one_pass(data.stripes);
  return fmt::format("{} archives, {} stripes in {} splits{}", data.manifest.archives.size(), data.stripes.stripes,
                     data.stripes.splits.size(),
                     unseen < 0.02 ? "" : fmt::format("; uneven: one pass leaves {:.0f}% for later", 100 * unseen));
}

}  // namespace millrace
