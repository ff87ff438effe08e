#include "millrace/encode/encoder.h"

#include <torch/utils.h>

#include <algorithm>

#include "millrace/core/error.h"
#include "millrace/nn/pass_graph.h"

namespace millrace {

void EncodeConfig::describe(config::Section& section) {
  section.key("batch_size", batch_size, "images an encoder pass takes; the shape never changes during a run")
      .at_least(1);
  section.key("dtype", dtype, "arithmetic of the encoders; auto = bfloat16 on CUDA, float32 on the CPU")
      .one_of({"auto", "float32", "bfloat16", "float16"});
  section.key("cache", cache, "folder of the write-through latent cache; null = none");
  section.key("rows_per_file", rows_per_file, "samples per latent file").at_least(1);
  section.key("text_on", text_on, {{"producer", TextOn::producer}, {"trainer", TextOn::trainer}},
              "where the text encoder runs; with trainer, parcels and the cache hold token ids");
}

torch::Tensor stack_images(std::span<const TransformedSample> samples) {
  return stack_images(samples, std::ssize(samples), /*pinned=*/false);
}

torch::Tensor stack_images(std::span<const TransformedSample> samples, std::int64_t rows, bool pinned) {
  ensure(!samples.empty(), "a batch has at least one image");
  const int height = samples[0].image.height, width = samples[0].image.width;
  auto pixels = torch::empty({rows, height, width, 3}, torch::TensorOptions(torch::kUInt8).pinned_memory(pinned));
  const std::size_t image_bytes = static_cast<std::size_t>(height) * width * 3;
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    const auto& image = samples[std::min(row, samples.size() - 1)].image.pixels;
    ensure(image.size() == image_bytes, "all images of a batch have one size");
    std::copy(image.begin(), image.end(), pixels.data_ptr<std::uint8_t>() + row * image_bytes);
  }
  return pixels;
}

torch::Tensor stack_tokens(std::span<const TransformedSample> samples) {
  auto ids = torch::empty({static_cast<std::int64_t>(samples.size()), token_count}, torch::kInt64);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    ensure(samples[i].tokens.size() == token_count, "samples for the encoders have their tokens");
    std::copy(samples[i].tokens.begin(), samples[i].tokens.end(), ids.data_ptr<std::int64_t>() + i * token_count);
  }
  return ids;
}

torch::Tensor normalize_images(const torch::Tensor& pixels, torch::Dtype dtype) {
  const auto layout = pixels.is_cuda() ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  return pixels.permute({0, 3, 1, 2})
      .to(torch::kFloat32, /*non_blocking=*/false, /*copy=*/true, layout)
      .div_(127.5)
      .sub_(1.0)
      .to(dtype);
}

Encoder::Encoder(AutoencoderKL vae, CLIPTextModel text, torch::Device device, torch::Dtype dtype, int batch_size)
    : vae_(std::move(vae)), device_(device), dtype_(dtype), batch_size_(batch_size) {
  vae_->to(device_, dtype_);
  vae_->eval();
  if (text) text_.emplace(std::move(text), device, dtype, batch_size);
}

StartedBatch Encoder::start(std::span<const TransformedSample> samples) {
  ensure(static_cast<int>(samples.size()) <= batch_size_, "an encoder batch has at most encode.batch_size samples");
  torch::InferenceMode guard;
  const NoRecording waits;  // cuDNN tries its kernels in the first batch
  const auto count = std::ssize(samples);

  StartedBatch started;
  for (const auto& sample : samples) started.batch.refs.push_back(sample.ref);
  const auto pixels = Upload(stack_images(samples, batch_size_, /*pinned=*/device_.is_cuda()), device_).take();
  const auto moments = vae_->encode(normalize_images(pixels, dtype_));  // (batch_size, 8, h, w)
  const auto tokens = stack_tokens(samples);
  if (text_)  // a folder's tokenizer may know tokens that were added for another text encoder
    for (std::int64_t i = 0; i < count; ++i) text_->check(tokens[i], samples[static_cast<std::size_t>(i)].ref.id);
  const auto text = text_ ? text_->encode(tokens) : tokens.to(torch::kInt32);  // (B, 77, C) or (B, 77)
  started.batch.moments = start_download(moments.slice(0, 0, count).to(torch::kHalf));
  started.batch.text = start_download(text);
  started.work = DeviceWork(device_);
  return started;
}

EncodedBatch Encoder::collect(StartedBatch started) {
  started.work.synchronize();
  images_ += std::ssize(started.batch.refs);
  return std::move(started.batch);
}

}  // namespace millrace
