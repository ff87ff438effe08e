#include "millrace/models/encoder_cost.h"

#include <algorithm>

namespace millrace {
namespace {

double count(std::int64_t multiplications, std::int64_t outputs) {
  return 2.0 * static_cast<double>(multiplications) * static_cast<double>(outputs);
}

// ResnetBlock2D.
double resnet_flops(std::int64_t in, std::int64_t out, std::int64_t pixels) {
  return count(9 * in * out + 9 * out * out + (in == out ? 0 : in * out), pixels);
}

// Four linear layers, the scores and the sum that they weigh.
double attention_flops(std::int64_t channels, std::int64_t tokens) {
  return count(4 * channels * channels + 2 * channels * tokens, tokens);
}

}  // namespace

double vae_encode_flops(const AutoencoderKLConfig& config, std::int64_t height, std::int64_t width) {
  const auto& levels = config.coder.channels;
  double flops = count(9 * config.in_channels * levels.front(), height * width);
  std::int64_t channels = levels.front();
  for (std::size_t level = 0; level < levels.size(); ++level) {
    for (std::int64_t layer = 0; layer < config.coder.layers_per_block; ++layer) {
      flops += resnet_flops(channels, levels[level], height * width);
      channels = levels[level];
    }
    if (level + 1 == levels.size()) break;
    height /= 2, width /= 2;
    flops += count(9 * channels * channels, height * width);
  }
  const auto pixels = height * width;
  flops += 2 * resnet_flops(channels, channels, pixels);
  if (config.coder.mid_attention) flops += attention_flops(channels, pixels);
  const auto moments = 2 * config.latent_channels;
  flops += count(9 * channels * moments, pixels);
  return config.use_quant_conv ? flops + count(moments * moments, pixels) : flops;
}

std::int64_t vae_encode_bytes(const AutoencoderKLConfig& config, std::int64_t images, std::int64_t height,
                              std::int64_t width, std::int64_t element_bytes, torch::DeviceType device) {
  // A block's input, what its first half has made of it, and the map that is being made of that; a CPU's convolutions
  // also put both of their maps into another order, and its attention keeps all scores. On a GPU what LibTorch's
  // allocator has taken in the end, with cuDNN's workspaces: 7.3 to 8 in runs of SD 2 on an H200 (docs/gpu.md).
  const double maps_at_once = device == torch::kCPU ? 5 : 7.4;
  const auto map = static_cast<double>(config.largest_encoder_map(height, width));
  const auto tokens = static_cast<double>((height / config.factor()) * (width / config.factor()));
  const double scores = device == torch::kCPU && config.coder.mid_attention ? tokens * tokens : 0;
  const auto at_once = std::min(images, config.images_to_encode(height, width));
  return static_cast<std::int64_t>((maps_at_once * map + scores) * static_cast<double>(at_once * element_bytes));
}

double text_encode_flops(const CLIPTextConfig& config, std::int64_t tokens) {
  const auto width = config.hidden_size;
  const auto layer = attention_flops(width, tokens) + count(2 * width * config.intermediate_size, tokens);
  return layer * static_cast<double>(config.num_hidden_layers);
}

}  // namespace millrace
