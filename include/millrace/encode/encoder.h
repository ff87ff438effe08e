#pragma once
#include <torch/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millrace/config/config.h"
#include "millrace/dataset/sample.h"
#include "millrace/encode/batch.h"
#include "millrace/encode/text_encoder.h"
#include "millrace/models/autoencoder_kl.h"
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

// The frozen half of Stable Diffusion: VAE encoder and text encoder on one device.
class Encoder {
 public:
  // Without `text` (null) captions stay tokens.
  Encoder(AutoencoderKL vae, CLIPTextModel text, torch::Device device, torch::Dtype dtype, int batch_size);

  // At most `batch_size` samples -> their moments and text on the host, refs in the same order.
  // NOTE [Fixed shape]: the networks always see exactly `batch_size` rows, a short batch is filled with its last
  // sample: kernels change with the batch size, and a sample's moments must not depend on how many neighbours it had.
  EncodedBatch encode(std::span<const TransformedSample> samples);

  // Where it has one.
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
// u8 (B, H, W, 3) -> fp32 (B, 3, H, W) in [-1, 1], where the pixels are.
torch::Tensor normalize_images(const torch::Tensor& pixels);

// Of each row whether its moments and text are all finite. f16 holds no more than 65504: an overflow shows as infinity.
std::vector<bool> finite_rows(const EncodedBatch& batch);

// Rows `rows` of `batch`, in that order.
EncodedBatch select_rows(const EncodedBatch& batch, const std::vector<int>& rows);
// The rows of all, one batch after the other; there must be one. `pinned`: in page-locked memory, which a GPU copies
// from while the host goes on.
EncodedBatch concatenate(std::vector<EncodedBatch> batches, bool pinned = false);

}  // namespace millrace
