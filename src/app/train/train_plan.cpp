#include "train/train_plan.h"

#include <algorithm>
#include <limits>

#include "launch/broadcast_plan.h"
#include "launch/gpu_sharing.h"
#include "millrace/comm/agree.h"
#include "millrace/core/log.h"
#include "millrace/core/node_memory.h"
#include "millrace/core/startup.h"
#include "millrace/diffusion/sampler.h"
#include "millrace/encode/fingerprint.h"
#include "millrace/generate/prompts.h"
#include "millrace/io/json.h"
#include "millrace/latents/latent_cache.h"
#include "millrace/models/pipeline_export.h"
#include "millrace/nn/device.h"
#include "millrace/nn/gpu_identity.h"
#include "run/encoders.h"
#include "train/complaints.h"
#include "train/micro_batch.h"
#include "train/training_pass.h"

namespace millrace {

static void check_shapes(const TrainPlan& plan, config::Report& report) {
  const auto unet = plan.unet_config();
  const auto& encoding = plan.input.encoding;
  const auto* const key = plan.config.model.unet.config ? "model.unet.config" : "model.pipeline";
  const auto channels = encoding.shape.moments[0] / 2;
  if (unet.in_channels != channels)
    report.problem(key, fmt::format("the U-Net takes {} channels, the VAE makes {}", unet.in_channels, channels));
  if (unet.out_channels != channels)  // a single one would spread over all, and train
    report.problem(key, fmt::format("the U-Net predicts {} channels, the VAE makes {}", unet.out_channels, channels));
  for (const auto width : unet.cross_attention_dim)
    if (width != encoding.text_width) {
      report.problem(key, fmt::format("the U-Net attends to embeddings of width {}, the text encoder makes {}", width,
                                      encoding.text_width));
      break;
    }
  report.throw_if_problems();
}

// Prompts are used in turn; the seeds depend on nothing, so that pictures of all steps compare.
static std::vector<ImageRequest> plan_pictures(const PicturesConfig& config) {
  if (!config.prompts) return {};
  const auto prompts = with_key("samples.prompts", [&] { return read_prompts(*config.prompts, {}); });
  std::vector<ImageRequest> pictures;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(config.count); ++i) {
    pictures.push_back(prompts[i % prompts.size()]);
    pictures.back().seed = i;
  }
  return pictures;
}

// Uses the sampler that the exported folder names, with the keys that an export writes, else DDIM. Made here so that it
// complains now: the first picture may be hours away.
static SamplingPlan plan_sampling(const SchedulerConfig& scheduler, const PicturesConfig& config) {
  SamplingPlan plan{.scheduler = find_refusal(scheduler) ? scheduler.as_exported().with_class(SchedulerClass::ddim)
                                                         : scheduler.as_exported(),
                    .steps = config.steps,
                    .guidance_scale = config.guidance_scale};
  try {
    (void)make_sampler(plan.scheduler, plan.steps);
  } catch (const Error& error) {
    const auto* const key = error.exit() == Exit::usage ? "samples.steps" : "samples.prompts";
    throw about_key(key, error);
  }
  return plan;
}

static void load_unet_config(TrainPlan& plan) {
  const auto& file = plan.config.model.unet.config;
  plan.unet_file = file ? *file : (plan.pipeline.component("unet") / "config.json").string();
  if (!file) {
    plan.unet = plan.pipeline.config("unet");
    return;
  }
  plan.unet = with_key("model.unet.config", [&] { return read_json_object(*file); });
}

void plan_model(TrainPlan& plan) {
  const auto& c = plan.config;
  plan.pictures = plan_pictures(c.samples);
  plan.pipeline = PipelineFolder::open(c.model.pipeline.value);
  load_unet_config(plan);
  const auto folders = plan.pipeline.scheduler();
  plan.scheduler = trained_scheduler(folders, c.objective);
  plan.warnings = list_objective_problems(folders, c.objective);
  if (plan.pipeline.has("vae")) plan.warn_of(complaint_about_shift(plan.pipeline.config("vae")));
  if (!plan.pictures.empty()) plan.sampling = plan_sampling(plan.scheduler, c.samples);
}

// `gpu_of_rank`: empty where there is none.
static void check_cuda_graphs(const TrainPlan& plan, const std::vector<std::string>& gpu_of_rank) {
  if (!plan.config.model.cuda_graphs.value_or(false)) return;
  const auto unet = plan.unet_config();
  for (const int trainer : plan.roles.trainers) {
    const auto device = gpu_of_rank[static_cast<std::size_t>(trainer)].empty() ? torch::kCPU : torch::kCUDA;
    check_cuda_graphs(plan.config.model.cuda_graphs, plan_cuda_graphs(plan.config, unet, plan.shards, device, trainer));
  }
}

void plan_roles(const Session& session, TrainPlan& plan) {
  const auto gpus = gpu_names(session);
  on_all(session.world.group(), [&] {
    if (const auto lost = ranks_that_lost_a_gpu(gpus, plan.config.roles); !lost.empty())
      suspect_nodes_of(session.world, lost, "others with their role have a GPU; without one",
                       "`nvidia-smi` there tells whether it is gone: leave that node out; roles.producers lets ranks "
                       "without a GPU encode beside others that have one");
    plan.roles = plan_roles(gpus, plan.config.roles);
    std::vector<std::string> hosts;
    for (const int trainer : plan.roles.trainers) hosts.push_back(session.world.hosts()[trainer]);
    plan.shards = plan_shards(plan.config.parallel, hosts);
    plan.warn_of(complaint_about_nodes(plan.shards, hosts));
    plan.warn_of(complaint_about_cpu_producers(plan.roles, gpus));
    check_cuda_graphs(plan, gpus);
  });
}

static std::int64_t own_memory(const Session& session) {
  const auto& world = session.world.group();
  struct Device {
    std::string name;
    std::uint64_t bytes;
  };
  const auto own = on_all(world, [&]() -> Device {
    if (!session.device.is_cuda()) return {session.world.host(), node_memory_bytes()};
    const auto gpu = gpu_identity(session.device);
    return {gpu.uuid, gpu.total_bytes};
  });
  return share_of_memory(own.bytes, own.name, world.all_gather_strings(own.name));
}

bool trainers_encode(const TrainPlan& plan) {
  return plan.roles.all_in_one && plan.config.data.train.type != SourceConfig::Type::latents;
}

RunMemory run_memory(const TrainPlan& plan, torch::Device device, double program_bytes) {
  const bool encodes = trainers_encode(plan);
  RunShapes shapes{.unet = plan.unet, .vae = {}, .text_encoder = {}, .unet_file = plan.unet_file};
  if (encodes) shapes.vae = plan.pipeline.config("vae");
  if (encodes || plan.input.encoding.shape.has_tokens()) shapes.text_encoder = plan.pipeline.config("text_encoder");
  return RunMemory(plan.config, shapes, plan.input.encoding.shape, device, program_bytes);
}

// On the device of the trainer with least memory: the total, not what is free, so that a run that starts again chooses
// the same again.
static int fit_micro_batch(const TrainPlan& plan, torch::Device device, std::int64_t total_bytes) {
  constexpr double program_bytes = 256 << 20;
  const auto& c = plan.config;
  const auto memory = run_memory(plan, device, program_bytes);
  const int fitting = memory.fitting_micro_batch(static_cast<double>(total_bytes), plan.shards, trainers_encode(plan));
  const int micro = choose_micro_batch(plan.input.routing, c.batch.global, fitting);
  const int share = plan.input.routing.largest_share(c.batch.global);
  if (2 * micro < std::min(fitting, share))
    log::warning("batch.micro=auto takes {} of {} images that would fit: a trainer's share of {} has no larger divisor",
                 micro, fitting, share);
  return micro;
}

// batch.micro, or what `auto` stands for. Collective.
static int plan_micro_batch(const Session& session, const TrainPlan& plan) {
  const auto& world = session.world.group();
  if (plan.config.batch.micro.value) return *plan.config.batch.micro.value;
  const bool trains = plan.roles.trains(world.rank());
  const auto least = world.smallest(trains ? plan.own_memory : std::numeric_limits<std::int64_t>::max());
  const bool decides = world.rank() == plan.roles.trainers.front();
  const int micro = on_all(world, [&] { return decides ? fit_micro_batch(plan, session.device, least) : 0; });
  return static_cast<int>(world.largest(micro));
}

// encode.dtype, or what `auto` stands for on the devices of the producers, if they encode. Collective.
static torch::Dtype encoders_dtype(const Session& session, const TrainPlan& plan) {
  const auto& world = session.world.group();
  const auto own = on_all(world, [&] { return parse_dtype(plan.config.encode.dtype, session.device); });
  if (plan.config.data.train.type == SourceConfig::Type::latents) return own;
  const auto names = world.all_gather_strings(dtype_name(own));
  const auto name_of = [&](int rank) { return names[static_cast<std::size_t>(rank)]; };
  const int first = plan.roles.producers.front();
  on_all(world, [&] {
    for (const int other : plan.roles.producers)
      if (name_of(other) != name_of(first))
        throw Error(Exit::usage,
                    fmt::format("encode.dtype=auto stands for {} on rank {} and for {} on rank {}", name_of(first),
                                first, name_of(other), other),
                    "set encode.dtype: all producers must encode alike");
  });
  return parse_dtype(name_of(first), session.device);
}

// What was read for the cache, else `digest`.
template <class Digest>
static nlohmann::json digest_of_plan(const TrainPlan& plan, const char* component, const Digest& digest) {
  const nlohmann::json::json_pointer place(fmt::format("/model.pipeline/{}", component));
  if (plan.input.encoding.fingerprint.contains(place)) return plan.input.encoding.fingerprint.at(place);
  return digest();
}

nlohmann::json describe_encoders(const Group& world, const TrainPlan& plan) {
  return nlohmann::json::parse(broadcast_from_root(world, [&] {
    const auto digest = [&](const char* component) {
      return digest_of_plan(plan, component, [&] { return digest_if_there(plan.pipeline, component); });
    };
    auto encoders = describe_scales(plan.pipeline, plan.scheduler);
    if (plan.input.encoding.encodes) encoders["vae"]["weights"] = digest("vae");
    if (plan.input.encoding.encodes || plan.input.encoding.shape.has_tokens()) {
      encoders["text_encoder"]["weights"] = digest("text_encoder");
      encoders["tokenizer"]["files"] =
          digest_of_plan(plan, "tokenizer", [&] { return tokenizer_digest_if_there(plan.pipeline); });
    }
    // fingerprint.h: of a class data set, and of a cache that says which one it is to have been made with.
    encoders["data.train"]["idx_to_prompt"] = source_fingerprint(plan.config.data.train).at("idx_to_prompt");
    // Made anew another way, a cache has the same archives in the same place. Tables do not tell how they were made.
    if (!plan.input.encoding.encodes && plan.input.encoding.cache)
      encoders["data.train"]["cache"] = read_cache_description(*plan.input.encoding.cache).fingerprint;
    return encoders.dump();
  }));
}

// Pretrained weights go on with what they predict, unless somebody says otherwise.
static void check_prediction(const TrainPlan& plan, config::Report& report) {
  constexpr auto key = "objective.prediction";
  const auto folders = plan.pipeline.scheduler().prediction, own = plan.config.objective.prediction;
  if (plan.config.model.unet.init != ModelConfig::Init::pretrained || folders == own || report.is_set(key)) return;
  report.problem(key,
                 fmt::format("is not set, and the weights of {} predict {}: set it to {}, or to {} to teach them that",
                             plan.config.model.pipeline.value, to_string(folders), to_string(folders), to_string(own)));
}

void plan_data(const Session& session, TrainPlan& plan, config::Report& report) {
  const auto& world = session.world.group();
  const auto& c = plan.config;
  auto& input = plan.input;
  input.data = broadcast_data_plan(world, c.data.train, c.data, c.batch.global);
  startup::done("data");
  input.encoding = broadcast_encoding_plan(world, c, plan.pipeline, input.data.manifest, encoders_dtype(session, plan));
  on_all(world, [&] {
    check_prediction(plan, report);
    check_shapes(plan, report);
    if (!report.is_set("objective.caption_dropout"))
      plan.warn_of(complaint_about_captions(input.encoding, c.objective));
    input.routing = plan_routing(plan.roles, input.stripes());
  });
  plan.own_memory = own_memory(session);
  plan.micro_batch = plan_micro_batch(session, plan);
  plan.micro_batch =
      on_all(world, [&] { return micro_batch_of_share(input.routing, c.batch.global, plan.micro_batch); });
  on_all(world, [&] { plan_parcels(input, c.batch.global, plan.roles); });
  plan.validation = plan_validation(session, c, plan.pipeline, plan.roles, input.encoding.shape);
  plan.warn_of(complaint_about_shares(input.routing));
  plan.warn_of(complaint_about_producers(plan.roles, input.stripes(), c.batch.global));
  plan.warn_of(complaint_about_sums(c.parallel, plan.shards, session.device));
  startup::done("plan");
}

}  // namespace millrace
