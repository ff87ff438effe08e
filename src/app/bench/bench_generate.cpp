// bench generate: whole images by the sampler of the folder.
#include "bench/bench.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/device.h"

namespace millrace {

BenchResult bench_generate(const BenchConfig& c) {
  const auto device = resolve_device(c.run.device);
  const auto dtype = parse_dtype(c.model.dtype, device);
  const auto folder = PipelineFolder::open(c.model.pipeline);
  const auto tokenizer = ClipTokenizer::load(folder.component("tokenizer"), c.tokenizer);
  ImageModel model{folder.load_unet(device, dtype), folder.load_vae(device, dtype),
                   folder.load_text_encoder(device, dtype), tokenizer, folder.scheduler()};
  std::vector<ImageRequest> requests;
  for (int i = 0; i < c.generate.batch_size; ++i)
    requests.push_back({fmt::format("picture number {} of a benchmark", i), c.generate.negative_prompt,
                        c.generate.seed + static_cast<std::uint64_t>(i)});

  BenchResult figures("generate");
  std::vector<torch::Tensor> first;
  repeat(c, Group(), [&](bool measured) {
    std::vector<torch::Tensor> latents;
    const Stopwatch watch;
    generate(model, requests, c.generate, std::nullopt,
             [&](const GeneratedImage& made) { latents.push_back(made.latent); });
    const double seconds = watch.seconds();
    ensure(latents.size() == requests.size(), "every request has its image");
    if (!measured) {
      for (const auto& latent : latents)
        if (!torch::isfinite(latent).all().item<bool>()) fail(Exit::numerics, "a generated latent is not finite");
      first = latents;
      return;
    }
    if (device.is_cpu())  // kernels on GPUs may add in another order every time
      for (std::size_t i = 0; i < first.size(); ++i)
        ensure(torch::equal(first[i], latents[i]), "the same seeds give the same images");
    const auto images = static_cast<double>(requests.size());
    figures.add("images", "images/s", images / seconds);
    figures.add("step", "ms", 1000 * seconds / c.generate.steps);
    figures.add("memory", "MiB", static_cast<double>(peak_memory_bytes(device)) / (1 << 20));
  });
  return figures;
}

}  // namespace millrace
