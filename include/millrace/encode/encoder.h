#pragma once
#include <torch/types.h>

#include <optional>
#include <span>
#include <string>

#include "millrace/config/config.h"
#include "millrace/dataset/sample.h"
#include "millrace/encode/batch.h"
#include "millrace/encode/text_encoder.h"
#include "millrace/models/autoencoder_kl.h"
#include "millrace/nn/device_work.h"
#include "millrace/text/tokenizer.h"

namespace millrace {

struct EncodeConfig {
  enum class TextOn { producer, trainer };
  int batch_size = 120;
  std::string dtype = "auto";
  std::optional<std::string> cache;
  int rows_per_file = 5000;
  TextOn text_on = TextOn::producer;

  void describe(config::Section& section);
};

// A batch that is being encoded: moments and text are there when `work` is done.
struct StartedBatch {
  EncodedBatch batch;
  DeviceWork work;
};

// The frozen half of Stable Diffusion: VAE encoder and text encoder on one device.
class Encoder {
 public:
  // Without `text` (null) captions stay tokens.
  Encoder(AutoencoderKL vae, CLIPTextModel text, torch::Device device, torch::Dtype dtype, int batch_size);

  // At most `batch_size` samples -> their moments and text on the host, refs in the same order.
  // NOTE [Fixed shape]: the networks always see exactly `batch_size` rows, a short batch is filled with its last
  // sample: kernels change with the batch size, and a sample's moments must not depend on how many neighbours it had.
  EncodedBatch encode(std::span<const TransformedSample> samples) { return collect(start(samples)); }

  // encode() in two parts. When start() returns, a GPU is still computing: the next batch may be put together and
  // started meanwhile, behind this one. A CPU is done by then.
  StartedBatch start(std::span<const TransformedSample> samples);
  EncodedBatch collect(StartedBatch started);

  // Only if it has one.
  TextEncoder& text() { return text_.value(); }

  torch::Device device() const { return device_; }
  int batch_size() const { return batch_size_; }
  std::int64_t images() const { return images_; }  // encoded so far, padding not counted

 private:
  AutoencoderKL vae_;
  std::optional<TextEncoder> text_;
  torch::Device device_;
  torch::Dtype dtype_;
  int batch_size_;
  std::int64_t images_ = 0;
};

// What the encoders take: the samples' pixels, u8 (B, H, W, 3), and their tokens, i64 (B, 77); on the host.
torch::Tensor stack_images(std::span<const TransformedSample> samples);
torch::Tensor stack_tokens(std::span<const TransformedSample> samples);
// The same, the last image repeated until there are `rows`; `pinned` as in make_empty_batch.
torch::Tensor stack_images(std::span<const TransformedSample> samples, std::int64_t rows, bool pinned);
// u8 (B, H, W, 3) -> (B, 3, H, W) in [-1, 1], computed in fp32, where the pixels are; on a GPU in channels-last order,
// as networks have it there.
torch::Tensor normalize_images(const torch::Tensor& pixels, torch::Dtype dtype = torch::kFloat32);

}  // namespace millrace
