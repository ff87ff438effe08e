#include "run/networks.h"

#include "millrace/models/initialize.h"
#include "millrace/parallel/sharded_model.h"

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

UNet2DConditionModel make_unet_for_run(const TrainPlan& plan) {
  const auto& c = plan.config;
  UNet2DConditionModel unet(UNet2DConditionConfig::from_json(plan.unet));
  if (!plan.start.checkpoint) set_first_weights(*unet, c.model.unet.init, plan.pipeline, "unet", c.run.seed);
  unet->train();
  unet->set_gradient_checkpointing(c.model.gradient_checkpointing);
  return unet;
}

std::map<std::string, torch::Tensor> load_ema_start(const TrainPlan& plan) {
  const auto& path = plan.config.model.unet.ema_start;
  if (!path || plan.start.checkpoint) return {};
  const fs::path where = *path;
  UNet2DConditionModel unet(UNet2DConditionConfig::from_json(plan.unet));
  if (where.extension() == ".safetensors") {
    load_weights(*unet, where.parent_path(), where.stem().string());
  } else {
    load_weights(*unet, PipelineFolder::open(where).component("unet"), diffusers_stem);
  }
  return weights_of(*unet);
}

AutoencoderKL make_vae_for_run(const AutoencoderTrainConfig& c, const PipelineFolder& pipeline, const Start& start) {
  AutoencoderKL vae(AutoencoderKLConfig::from_json(pipeline.config("vae")));
  if (!start.checkpoint) set_first_weights(*vae, c.model.init, pipeline, "vae", c.run.seed);
  vae->train();
  return vae;
}

}  // namespace millrace
