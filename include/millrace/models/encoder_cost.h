#pragma once
#include <torch/types.h>

#include <cstdint>

#include "millrace/models/autoencoder_kl.h"
#include "millrace/models/clip_text.h"

// What the frozen networks take, from shapes alone. A multiply-add counts as two operations.
namespace millrace {

// AutoencoderKL::encode of one image of these sizes in pixels.
double vae_encode_flops(const AutoencoderKLConfig& config, std::int64_t height, std::int64_t width);

// About the most bytes that feature maps of it hold at once, for a batch of images; on a GPU with what the allocator
// keeps.
std::int64_t vae_encode_bytes(const AutoencoderKLConfig& config, std::int64_t images, std::int64_t height,
                              std::int64_t width, std::int64_t element_bytes, torch::DeviceType device);

// CLIPTextModel of one caption.
double text_encode_flops(const CLIPTextConfig& config, std::int64_t tokens);

}  // namespace millrace
