#include "millrace/models/autoencoder_kl.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "config_reader.h"
#include "millrace/core/error.h"

namespace millrace {

namespace {

void check_block_types(ConfigReader& reader, std::string_view key, const std::string& only, std::size_t levels) {
  const auto types = reader.texts(key, {only});
  for (const auto& type : types) {
    if (type != only) reader.fail_key(key, fmt::format("block type {} is not built here, only {}", type, only));
  }
  if (types.size() != levels) {
    reader.fail_key(key, fmt::format("expected {} names, as many as block_out_channels", levels));
  }
}

CoderOptions read_coder(ConfigReader& reader) {
  CoderOptions coder;
  coder.channels = reader.positives("block_out_channels", {64});
  check_block_types(reader, "down_block_types", "DownEncoderBlock2D", coder.channels.size());
  check_block_types(reader, "up_block_types", "UpDecoderBlock2D", coder.channels.size());
  coder.layers_per_block = reader.positive("layers_per_block", 1, most_layers);
  coder.groups = reader.positive("norm_num_groups", 32);
  for (const auto channels : coder.channels) {
    if (channels % coder.groups != 0) {
      reader.fail_key("norm_num_groups", fmt::format("does not divide the {} channels of a level", channels));
    }
  }
  coder.activation = reader.activation("act_fn", "silu");
  coder.mid_attention = reader.boolean("mid_block_add_attention", true);
  return coder;
}

}  // namespace

AutoencoderKLConfig AutoencoderKLConfig::from_json(const nlohmann::json& json, const std::string& file) {
  ConfigReader reader(json, file);
  AutoencoderKLConfig c;
  c.source = json;
  reader.check_class("AutoencoderKL");
  c.in_channels = reader.positive("in_channels", 3);
  c.out_channels = reader.positive("out_channels", 3);
  if (c.in_channels != 3) reader.fail_key("in_channels", "is not 3: pictures are RGB");
  if (c.out_channels != 3) reader.fail_key("out_channels", "is not 3: pictures are RGB");  // one would spread over all
  c.latent_channels = reader.positive("latent_channels", 4);
  c.coder = read_coder(reader);
  c.use_quant_conv = reader.boolean("use_quant_conv", true);
  c.use_post_quant_conv = reader.boolean("use_post_quant_conv", true);
  c.scaling_factor = reader.number("scaling_factor", 0.18215);
  if (reader.find("shift_factor")) c.shift_factor = reader.number("shift_factor", 0);
  reader.refuse({"latents_mean", "latents_std"}, "latents with statistics per channel are not supported");
  reader.ignore({"sample_size", "force_upcast"});  // for tiling, and for SDXL's pipeline in fp16
  reader.finish();
  return c;
}

std::int64_t AutoencoderKLConfig::latent_side(std::int64_t resolution) const {
  if (resolution % factor() != 0)
    fail(Exit::usage, "transform.resolution = {} is not a multiple of the VAE's factor {}", resolution, factor());
  return resolution / factor();
}

AutoencoderKLImpl::AutoencoderKLImpl(const AutoencoderKLConfig& c)
    : config_(c),
      encoder(c.coder, c.in_channels, 2 * c.latent_channels),
      decoder(c.coder, c.latent_channels, c.out_channels) {
  register_module("encoder", encoder);
  register_module("decoder", decoder);
  if (c.use_quant_conv) {
    quant_conv = register_module("quant_conv", nn::Conv2d(2 * c.latent_channels, 2 * c.latent_channels, 1));
  }
  if (c.use_post_quant_conv) {
    post_quant_conv = register_module("post_quant_conv", nn::Conv2d(c.latent_channels, c.latent_channels, 1));
  }
}

// Kernels number the elements of a feature map with 32 bits. So many images fit whose largest map has `elements` each.
static std::int64_t images_of(std::int64_t elements) {
  return std::max<std::int64_t>(1, std::numeric_limits<std::int32_t>::max() / elements);
}

// Each level's maps lie one pixel wider for its downsampling.
std::int64_t AutoencoderKLConfig::largest_encoder_map(std::int64_t height, std::int64_t width) const {
  std::int64_t most = 0;
  for (const auto channels : coder.channels) {
    most = std::max(most, channels * (height + 1) * (width + 1));
    height /= 2, width /= 2;
  }
  return most;
}

// Each level's upsampling makes maps of the size of the level above, with as many channels as before.
std::int64_t AutoencoderKLConfig::largest_decoder_map(std::int64_t height, std::int64_t width) const {
  std::int64_t most = 0;
  for (std::size_t level = 0; level < coder.channels.size(); ++level) {
    const auto below = std::min(level + 1, coder.channels.size() - 1);
    most = std::max(most, std::max(coder.channels[level], coder.channels[below]) * height * width);
    height /= 2, width /= 2;
  }
  return most;
}

// Stable Diffusion's largest maps are those of the first level: 63 images of 512 pixels.
std::int64_t AutoencoderKLConfig::images_to_encode(std::int64_t height, std::int64_t width) const {
  return images_of(largest_encoder_map(height, width));
}

// Stable Diffusion's are as large as the image, with the channels of the second level: 31 images of 512 pixels.
std::int64_t AutoencoderKLConfig::images_to_decode(std::int64_t height, std::int64_t width) const {
  return images_of(largest_decoder_map(height, width));
}

std::int64_t AutoencoderKLConfig::images_of_one_pass(std::int64_t side) const {
  return std::min(images_to_encode(side, side), images_to_decode(side, side));
}

torch::Tensor in_parts(const torch::Tensor& batch, std::int64_t limit,
                       const std::function<torch::Tensor(const torch::Tensor&)>& network) {
  const auto rows = batch.size(0);
  const auto parts = (rows + limit - 1) / limit;
  if (parts <= 1) return network(batch);
  std::vector<torch::Tensor> outputs;
  for (const auto& part : batch.split((rows + parts - 1) / parts)) outputs.push_back(network(part));
  return torch::cat(outputs);
}

torch::Tensor AutoencoderKLImpl::encode(const torch::Tensor& image) {
  return in_parts(image, config_.images_to_encode(image.size(2), image.size(3)), [&](const torch::Tensor& part) {
    const auto moments = encoder(part);
    return quant_conv ? quant_conv(moments) : moments;
  });
}

torch::Tensor AutoencoderKLImpl::decode(const torch::Tensor& latent) {
  const auto factor = config_.factor();
  return in_parts(latent, config_.images_to_decode(factor * latent.size(2), factor * latent.size(3)),
                  [&](const torch::Tensor& part) { return decoder(post_quant_conv ? post_quant_conv(part) : part); });
}

}  // namespace millrace
