#include "train/networks.h"

#include <torch/utils.h>

#include "launch/broadcast_tensor.h"
#include "millrace/core/error.h"
#include "millrace/generate/sampling.h"
#include "millrace/io/json.h"
#include "millrace/models/initialize.h"
#include "millrace/nn/device.h"
#include "millrace/nn/weights.h"
#include "millrace/parallel/sharded_model.h"
#include "millrace/parallel/sharded_optimizer.h"

namespace millrace {

// Fresh ones, or those of the pipeline's `component`.
static void set_first_weights(torch::nn::Module& network, ModelConfig::Init init, const PipelineFolder& pipeline,
                              const char* component, std::uint64_t seed) {
  if (init == ModelConfig::Init::pretrained) {
    load_weights(network, pipeline.component(component), diffusers_stem);
    return;
  }
  auto rules = plan_pytorch_init(parameter_shapes(network));
  if (init == ModelConfig::Init::zero_out) rules = with_zero_outputs(std::move(rules));
  initialize(network, rules, seed);
}

UNet2DConditionModel make_unet_for_run(const TrainPlan& plan, bool with_weights) {
  const auto& c = plan.config;
  UNet2DConditionModel unet(plan.unet_config());
  if (with_weights && !plan.start.checkpoint)
    set_first_weights(*unet, c.model.unet.init, plan.pipeline, "unet", c.run.seed);
  unet->train();
  unet->set_gradient_checkpointing(c.model.gradient_checkpointing);
  return unet;
}

std::optional<std::int64_t> find_ema_updates(const fs::path& folder) {
  const auto file = folder / "config.json";
  if (!fs::exists(file)) return std::nullopt;
  const auto config = read_json_object(file);
  const auto updates = config.find("optimization_step");
  if (updates == config.end()) return std::nullopt;
  if (!updates->is_number_unsigned() || updates->get<std::uint64_t>() > ShardedAdamW::many_ema_updates)
    fail(Exit::io, "{}: optimization_step is {}, not how many updates the average has had", file.string(),
         updates->dump());
  return updates->get<std::int64_t>();
}

// Nothing where model.unet.ema_start is null; `with_weights` as above.
static std::optional<EmaStart> load_ema_start(const TrainPlan& plan, bool with_weights) {
  const auto& path = plan.config.model.unet.ema_start;
  if (!path || plan.start.checkpoint) return std::nullopt;
  const fs::path where = *path;
  UNet2DConditionModel unet(plan.unet_config());
  if (!with_weights) return EmaStart{weights_of(*unet), {}};
  const bool is_file = where.extension() == ".safetensors";
  const auto folder = is_file ? where.parent_path() : PipelineFolder::open(where).component("unet");
  load_weights(*unet, folder, is_file ? where.stem().string() : diffusers_stem);
  return EmaStart{weights_of(*unet), find_ema_updates(folder)};
}

std::optional<TextEncoder> load_trainers_text_encoder(const Group& trainers, const Session& session,
                                                      const TrainPlan& plan) {
  if (!plan.input.encoding.shape.has_tokens()) return std::nullopt;
  const auto dtype = parse_dtype(plan.config.encode.dtype, session.device);
  return TextEncoder(load_text_encoder(trainers, plan.pipeline, session.device, dtype), session.device, dtype,
                     plan.micro_batch);
}

torch::Tensor null_text_of(TextEncoder& encoder, const TrainPlan& plan) {
  const auto tokenizer = ClipTokenizer::load(plan.pipeline.component("tokenizer"), plan.config.tokenizer);
  return encoder.null_text(tokenizer.encode(""));
}

// Of the pictures: N prompts, or 2 N with the negative ones first.
static std::vector<std::string> texts_of_pictures(const TrainPlan& plan) {
  std::vector<std::string> texts;
  if (plan.sampling->is_guided())
    for (const auto& picture : plan.pictures) texts.push_back(picture.negative_prompt);
  for (const auto& picture : plan.pictures) texts.push_back(picture.prompt);
  return texts;
}

// (texts, 77, C) on the host. The encoder is let go of afterwards.
static torch::Tensor embed_texts_of_pictures(const Session& session, const TrainPlan& plan) {
  const auto& c = plan.config;
  auto encoder = plan.pipeline.load_text_encoder(session.device, parse_dtype(c.encode.dtype, session.device));
  const auto tokenizer = ClipTokenizer::load(plan.pipeline.component("tokenizer"), c.tokenizer);
  return text_embeddings(encoder, tokenizer, texts_of_pictures(plan)).to(torch::kCPU, torch::kFloat32).contiguous();
}

LoadedNetworks::LoadedNetworks(const Session& session, const TrainPlan& plan) {
  const auto& world = session.world.group();
  const int rank = world.rank(), first_trainer = plan.roles.trainers.front();
  // The ranks of a role load together, and fail together.
  const bool produces = plan.roles.produces(rank), trains = plan.roles.trains(rank);
  const auto producers = world.split(produces, rank), trainers = world.split(trains, rank);
  EncoderNetworks encoders;
  if (produces) encoders = load_encoders(producers, plan.config, plan.pipeline, plan.input.encoding, session.device);
  if (trains) text_encoder = load_trainers_text_encoder(trainers, session, plan);
  on_all(world, [&] {
    if (produces)
      encode_pipeline.emplace(plan.config, plan.pipeline, plan.input.data, plan.input.encoding, session.device, rank,
                              encoders);
    if (!trains) return;
    // A thousand trainers must not read one file when they get its weights from the first of them anyway.
    unet = make_unet_for_run(plan, rank == first_trainer);
    ema = load_ema_start(plan, rank == first_trainer);
    if (text_encoder) null_text = null_text_of(*text_encoder, plan);
    if (plan.pictures.empty() || rank != first_trainer) return;
    pictures_text = embed_texts_of_pictures(session, plan);
    pictures_vae = plan.pipeline.load_vae(session.device, parse_dtype(plan.config.encode.dtype, session.device));
  });
  if (plan.pictures.empty()) return;
  const auto embeddings = broadcast_tensor(world, pictures_text, torch::kFloat32, first_trainer);
  if (plan.roles.trains(rank)) pictures_text = embeddings;
}

AutoencoderKL make_vae_for_run(const AutoencoderTrainConfig& c, const PipelineFolder& pipeline, const Start& start) {
  AutoencoderKL vae(AutoencoderKLConfig::from_json(pipeline.config("vae")));
  if (!start.checkpoint) set_first_weights(*vae, c.model.init, pipeline, "vae", c.run.seed);
  vae->train();
  return vae;
}

}  // namespace millrace
