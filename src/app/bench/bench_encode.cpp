// bench encode: made-up images and captions through both encoders, as a producer does it.
#include <torch/utils.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "bench/bench.h"
#include "millrace/core/error.h"
#include "millrace/core/philox.h"
#include "millrace/encode/encoder.h"
#include "millrace/models/pipeline_folder.h"
#include "millrace/nn/device.h"

namespace millrace {
namespace {

TransformedSample make_sample(std::uint64_t number, int resolution, const ClipTokenizer& tokenizer) {
  TransformedSample sample;
  sample.ref.id = fmt::format("bench/{}", number);
  sample.image = {resolution, resolution, {}};
  sample.image.pixels.resize(static_cast<std::size_t>(resolution) * resolution * 3);
  for (std::size_t i = 0; i < sample.image.pixels.size(); ++i)
    sample.image.pixels[i] = static_cast<std::uint8_t>((i * (number + 3)) >> 4);
  sample.tokens = tokenizer.encode(fmt::format("picture number {} of a benchmark", number));
  return sample;
}

// Of the norm of `of`.
double relative_difference(const torch::Tensor& a, const torch::Tensor& of) {
  const auto exact = of.to(torch::kFloat64);
  return ((a.to(torch::kFloat64) - exact).norm() / exact.norm()).item<double>();
}

// A sample's encoding must not depend on its neighbours: alone (the batch is filled up) it is bit for bit the same; on
// a GPU nearly so, because a library's kernels may split sums by the place in a batch.
void check_alone(Encoder& encoder, std::span<const TransformedSample> samples, const EncodedBatch& batch) {
  const auto alone = encoder.encode(samples.last(1));
  const auto last = static_cast<std::int64_t>(samples.size()) - 1;
  if (!std::ranges::all_of(finite_rows(batch), std::identity()))
    throw Error(Exit::numerics, "an encoding is not finite", "encode.dtype=bfloat16 or float32 has a wider range");
  const double most = encoder.device().is_cpu() ? 0 : 0.01;
  ensure(relative_difference(alone.moments[0], batch.moments[last]) <= most &&
             relative_difference(alone.text[0], batch.text[last]) <= most,
         "an encoding does not depend on its neighbours");
}

// Of one batch. On a GPU each is started before the one in front of it is collected, as an EncodingThread does it.
double seconds_of_batch(Encoder& encoder, std::span<const TransformedSample> samples) {
  if (encoder.device().is_cpu()) {
    const Stopwatch watch;
    encoder.encode(samples);
    return watch.seconds();
  }
  constexpr int batches = 4;
  auto running = encoder.start(samples);
  const auto next = [&] { encoder.collect(std::exchange(running, encoder.start(samples))); };
  next();
  const Stopwatch watch;
  for (int i = 0; i < batches; ++i) next();
  const double seconds = watch.seconds() / batches;
  encoder.collect(std::move(running));
  return seconds;
}

}  // namespace

BenchResult bench_encode(const BenchConfig& c) {
  const auto device = resolve_device(c.run.device);
  const auto dtype = parse_dtype(c.encode.dtype, device);
  const auto folder = PipelineFolder::open(c.model.pipeline);
  const auto tokenizer = ClipTokenizer::load(folder.component("tokenizer"), c.tokenizer);
  auto vae = folder.load_vae(device, dtype);
  auto text = folder.load_text_encoder(device, dtype);
  Encoder encoder(vae, text, device, dtype, c.encode.batch_size);
  std::vector<TransformedSample> samples;
  for (int i = 0; i < c.encode.batch_size; ++i)
    samples.push_back(make_sample(static_cast<std::uint64_t>(i), c.transform.resolution, tokenizer));
  const auto images = normalize_images(stack_images(samples).to(device)).to(dtype);
  const auto tokens = stack_tokens(samples).to(device);

  BenchResult figures("encode");
  figures.set_resolution(c.transform.resolution);
  repeat(c, Group(), [&](bool measured) {
    const double whole = seconds_of_batch(encoder, samples);
    if (!measured) return check_alone(encoder, samples, encoder.encode(samples));
    const torch::InferenceMode guard;
    Stopwatch watch;
    vae->encode(images);
    synchronize(device);
    const double vae_seconds = watch.lap();
    text->forward(tokens);
    synchronize(device);
    const double text_seconds = watch.lap();
    const auto count = static_cast<double>(samples.size());
    figures.add("images", "images/s", count / whole);
    figures.add("vae", "ms/image", 1000 * vae_seconds / count);
    figures.add("text", "ms/image", 1000 * text_seconds / count);
    figures.add("memory", "MiB", static_cast<double>(peak_memory_bytes(device)) / (1 << 20));
  });
  return figures;
}

}  // namespace millrace
