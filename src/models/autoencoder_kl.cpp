#include "millrace/models/autoencoder_kl.h"

#include "config_reader.h"

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
  coder.layers_per_block = reader.positive("layers_per_block", 1);
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
  c.in_channels = reader.positive("in_channels", 3);
  c.out_channels = reader.positive("out_channels", 3);
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

torch::Tensor AutoencoderKLImpl::encode(const torch::Tensor& image) {
  const auto moments = encoder(image);
  return quant_conv ? quant_conv(moments) : moments;
}

torch::Tensor AutoencoderKLImpl::decode(const torch::Tensor& latent) {
  return decoder(post_quant_conv ? post_quant_conv(latent) : latent);
}

}  // namespace millrace
