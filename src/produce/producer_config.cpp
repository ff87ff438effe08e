#include "millrace/produce/producer_config.h"

namespace millrace {

void describe_dtype(config::Section& section, std::string& dtype) {
  section
      .key("dtype", dtype,
           "arithmetic of the trained model; auto = bfloat16 on CUDA, float32 on the CPU; masters stay float32")
      .one_of({"auto", "float32", "bfloat16"});
}

void describe_channels_last(config::Section& section, config::Auto<bool>& channels_last) {
  section.key(
      "channels_last", channels_last,
      "images of the trained model lie in memory pixel by pixel, as tensor cores and the program's own kernels want "
      "them; auto = on CUDA, and in float32 on CPUs unless fused_kernels=false");
}

void describe_fused_kernels(config::Section& section, config::Auto<bool>& fused_kernels) {
  section.key(
      "fused_kernels", fused_kernels,
      "norms, GEGLU and the optimizer's step by kernels of the program's own in place of LibTorch's; auto = on "
      "CUDA, and others made for CPUs there; true = those of CUDA on CPUs too, where they are slow and good for "
      "comparisons");
}

void describe_cuda_graphs(config::Section& section, config::Auto<bool>& cuda_graphs) {
  section.key(
      "cuda_graphs", cuda_graphs,
      "forward and backward of a micro-batch as one CUDA graph, which a host starts at once; the same numbers. auto = "
      "where one GPU trains alone, unless record.steps, bench.profile, dropout or fused_kernels=false want kernels one "
      "by one; true = among several trainers, too, for the micro-batches between a step's first and last");
}

void RunConfig::describe(config::Section& section) {
  section.key("dir", dir, "folder of the run: checkpoints, metrics, logs");
  section.key("seed", seed, "of everything random");
  section.key("device", device, "where tensors live; auto = CUDA where there is one, else the CPU")
      .one_of({"auto", "cpu", "cuda"});
  section.key("deterministic", deterministic,
              "only GPU kernels that give the same bits each time, which are slower; on CPUs all do");
}

void ModelConfig::Unet::describe(config::Section& section) {
  section.key(
      "init", init, {{"random", Init::random}, {"zero_out", Init::zero_out}, {"pretrained", Init::pretrained}},
      "fresh weights as PyTorch makes them; the same with blocks that add nothing at first (output layers all 0); "
      "or the weights of model.pipeline");
  section.key("config", config, "unet/config.json of another shape; null = that of model.pipeline");
  section.key(
      "ema_start", ema_start,
      "pipeline, its unet/ or a weight file that the EMA starts from, after as many updates as its config.json says, "
      "else without ema.warmup; null = the initial weights");
}

void ModelConfig::describe(config::Section& section) {
  section.key("pipeline", pipeline, "diffusers folder: VAE, text encoder, tokenizer, scheduler and the U-Net's shape");
  section.section("unet", unet, "the trained network");
  section.key("gradient_checkpointing", gradient_checkpointing, "compute activations twice instead of keeping them");
  describe_dtype(section, dtype);
  describe_channels_last(section, channels_last);
  describe_fused_kernels(section, fused_kernels);
  describe_cuda_graphs(section, cuda_graphs);
}

void ProducerConfig::describe(config::Section& section) {
  section.section("run", run, "the run");
  section.section("model", model, "what is trained, and what encodes for it");
  section.section("data", data, "where samples come from, and in which order");
  section.section("transform", transform, "from image files to pixels");
  section.section("tokenizer", tokenizer, "from captions to ids");
  section.section("encode", encode, "from pixels and ids to latents and text embeddings");
}

}  // namespace millrace
