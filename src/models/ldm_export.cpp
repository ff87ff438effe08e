#include "millrace/models/ldm_export.h"

#include <fmt/ranges.h>
#include <torch/utils.h>

#include <algorithm>
#include <utility>

#include "millrace/core/error.h"
#include "millrace/core/text.h"

namespace millrace {
namespace {

using Names = std::vector<std::pair<std::string_view, std::string_view>>;

// "a.b.0.weight" -> its parts, which are taken from the front.
struct Path {
  explicit Path(std::string_view name) {
    for (std::size_t place = 0; place <= name.size();) {
      const auto end = std::min(name.find('.', place), name.size());
      parts.emplace_back(name.substr(place, end - place));
      place = end + 1;
    }
  }

  bool begins(std::string_view part) const { return !parts.empty() && parts.front() == part; }
  std::string take() {
    ensure(!parts.empty(), "a name with that many parts");
    auto first = std::move(parts.front());
    parts.erase(parts.begin());
    return first;
  }
  std::int64_t take_number() {
    const auto number = parse_number<std::int64_t>(take());
    ensure(number.has_value(), "a number in a tensor's name");
    return *number;
  }
  std::string rest() const { return fmt::format("{}", fmt::join(parts, ".")); }

  std::vector<std::string> parts;
};

// What a name begins with, up to a dot or its end, by the table; other names stay.
std::string renamed(std::string name, const Names& names) {
  for (const auto& [ours, theirs] : names)
    if (name.starts_with(ours) && (name.size() == ours.size() || name[ours.size()] == '.'))
      return std::string(theirs) + name.substr(ours.size());
  return name;
}

// ---- U-Net -------------------------------------------------------------------------------------------------------

const Names unet_ends = {{"time_embedding.linear_1", "time_embed.0"},
                         {"time_embedding.linear_2", "time_embed.2"},
                         {"conv_in", "input_blocks.0.0"},
                         {"conv_norm_out", "out.0"},
                         {"conv_out", "out.2"}};
const Names unet_resnet = {{"norm1", "in_layers.0"},  {"conv1", "in_layers.2"},  {"time_emb_proj", "emb_layers.1"},
                           {"norm2", "out_layers.0"}, {"conv2", "out_layers.3"}, {"conv_shortcut", "skip_connection"}};

class UNetNames {
 public:
  explicit UNetNames(const UNet2DConditionConfig& config) : config_(config) {
    if (config.mid != UNet2DConditionConfig::Mid::cross_attention)
      fail(Exit::usage, "--format ldm: a U-Net whose middle has no attention has no names in such a checkpoint");
  }

  std::string operator()(const std::string& name) const {
    Path path(name);
    if (path.begins("down_blocks")) return down(path);
    if (path.begins("mid_block")) return mid(path);
    if (path.begins("up_blocks")) return up(path);
    return renamed(name, unet_ends);
  }

 private:
  // A level of L layers is L blocks and one that makes the map smaller, behind the first convolution.
  std::string down(Path& path) const {
    path.take();
    const auto level = path.take_number();
    std::int64_t first = 1;
    for (std::int64_t i = 0; i < level; ++i) first += config_.layers_per_block[static_cast<std::size_t>(i)] + 1;
    const auto kind = path.take();
    const auto layer = path.take_number();
    if (kind == "downsamplers") {
      path.take();  // conv
      return fmt::format("input_blocks.{}.0.op.{}", first + config_.layers_per_block[static_cast<std::size_t>(level)],
                         path.rest());
    }
    return fmt::format("input_blocks.{}.{}", first + layer, inner(kind, path));
  }

  std::string mid(Path& path) const {
    path.take();
    const auto kind = path.take();
    const auto number = path.take_number();
    return kind == "resnets" ? fmt::format("middle_block.{}.{}", 2 * number, renamed(path.rest(), unet_resnet))
                             : fmt::format("middle_block.1.{}", path.rest());
  }

  // A level of L layers is L + 1 blocks; the last of them also makes the map larger.
  std::string up(Path& path) const {
    path.take();
    const auto block = static_cast<std::size_t>(path.take_number());
    const auto layers = [&](std::size_t i) { return config_.layers_per_block[config_.levels() - 1 - i] + 1; };
    std::int64_t first = 0;
    for (std::size_t i = 0; i < block; ++i) first += layers(i);
    const auto kind = path.take();
    const auto layer = path.take_number();
    if (kind == "upsamplers")
      return fmt::format("output_blocks.{}.{}.{}", first + layers(block) - 1, config_.up_cross_attention[block] ? 2 : 1,
                         path.rest());
    return fmt::format("output_blocks.{}.{}", first + layer, inner(kind, path));
  }

  static std::string inner(const std::string& kind, const Path& path) {
    return kind == "resnets" ? "0." + renamed(path.rest(), unet_resnet) : "1." + path.rest();
  }

  const UNet2DConditionConfig& config_;
};

// ---- VAE ---------------------------------------------------------------------------------------------------------

const Names vae_attention = {
    {"group_norm", "norm"}, {"to_q", "q"}, {"to_k", "k"}, {"to_v", "v"}, {"to_out.0", "proj_out"}};
const Names vae_resnet = {{"conv_shortcut", "nin_shortcut"}};

// Of the encoder or the decoder, without its name in front. Decoders count their levels from the image.
std::string coder_name(const std::string& name, std::int64_t levels) {
  Path path(name);
  if (path.begins("mid_block")) {
    path.take();
    const auto kind = path.take();
    const auto number = path.take_number();
    return kind == "resnets" ? fmt::format("mid.block_{}.{}", number + 1, renamed(path.rest(), vae_resnet))
                             : fmt::format("mid.attn_1.{}", renamed(path.rest(), vae_attention));
  }
  if (!path.begins("down_blocks") && !path.begins("up_blocks")) return renamed(name, {{"conv_norm_out", "norm_out"}});
  const bool is_down = path.take() == "down_blocks";
  const auto block = path.take_number();
  const auto level = is_down ? fmt::format("down.{}", block) : fmt::format("up.{}", levels - 1 - block);
  const auto kind = path.take();
  const auto layer = path.take_number();
  if (kind == "resnets") return fmt::format("{}.block.{}.{}", level, layer, renamed(path.rest(), vae_resnet));
  return fmt::format("{}.{}.{}", level, is_down ? "downsample" : "upsample", path.rest());
}

std::string vae_name(const std::string& name, std::int64_t levels) {
  Path path(name);
  if (!path.begins("encoder") && !path.begins("decoder")) return name;
  const auto coder = path.take();
  return coder + "." + coder_name(path.rest(), levels);
}

// ---- text encoder ------------------------------------------------------------------------------------------------

const Names open_clip_layer = {{"layer_norm1", "ln_1"},
                               {"layer_norm2", "ln_2"},
                               {"mlp.fc1", "mlp.c_fc"},
                               {"mlp.fc2", "mlp.c_proj"},
                               {"self_attn.out_proj", "attn.out_proj"}};
const Names open_clip_ends = {{"embeddings.token_embedding", "token_embedding"},
                              {"embeddings.position_embedding.weight", "positional_embedding"},
                              {"final_layer_norm", "ln_final"}};

// Queries, keys and values are one matrix there.
Tensors open_clip(const Tensors& tensors, std::int64_t layers) {
  Tensors named;
  for (const auto& [name, tensor] : tensors) {
    Path path(name);
    path.take();  // text_model
    if (!path.begins("encoder")) {
      named[renamed(path.rest(), open_clip_ends)] = tensor;
      continue;
    }
    path.take();  // encoder
    path.take();  // layers
    const auto layer = path.take_number();
    const auto rest = path.rest();
    if (rest.starts_with("self_attn.") && !rest.starts_with("self_attn.out_proj")) continue;
    named[fmt::format("transformer.resblocks.{}.{}", layer, renamed(rest, open_clip_layer))] = tensor;
  }
  for (std::int64_t layer = 0; layer < layers; ++layer)
    for (const char* part : {"weight", "bias"}) {
      std::vector<torch::Tensor> rows;
      for (const char* projection : {"q_proj", "k_proj", "v_proj"})
        rows.push_back(
            tensors.at(fmt::format("text_model.encoder.layers.{}.self_attn.{}.{}", layer, projection, part)));
      named[fmt::format("transformer.resblocks.{}.attn.in_proj_{}", layer, part)] = torch::cat(rows);
    }
  return named;
}

}  // namespace

Tensors ldm_unet(const UNet2DConditionConfig& config, const Tensors& tensors) {
  const UNetNames name_of(config);
  Tensors named;
  for (const auto& [name, tensor] : tensors) named["model.diffusion_model." + name_of(name)] = tensor;
  ensure(named.size() == tensors.size(), "every tensor has a name of its own");
  return named;
}

Tensors ldm_vae(const AutoencoderKLConfig& config, const Tensors& tensors) {
  const auto levels = std::ssize(config.coder.channels);
  Tensors named;
  for (const auto& [name, tensor] : tensors) {
    const auto theirs = vae_name(name, levels);
    // Their attention consists of convolutions.
    const bool is_linear = theirs.find(".attn_1.") != std::string::npos && tensor.dim() == 2;
    named["first_stage_model." + theirs] = is_linear ? tensor.unsqueeze(-1).unsqueeze(-1) : tensor;
  }
  ensure(named.size() == tensors.size(), "every tensor has a name of its own");
  return named;
}

Tensors ldm_text_encoder(const CLIPTextConfig& config, const Tensors& tensors) {
  Tensors named;
  if (config.hidden_act == nn::Activation::gelu) {
    for (const auto& [name, tensor] : open_clip(tensors, config.num_hidden_layers))
      named["cond_stage_model.model." + name] = tensor;
  } else {
    for (const auto& [name, tensor] : tensors) named["cond_stage_model.transformer." + name] = tensor;
  }
  return named;
}

void write_ldm_checkpoint(const std::filesystem::path& file, const Tensors& unet, const Tensors& vae,
                          const Tensors& text_encoder) {
  Tensors all;
  for (const auto* part : {&unet, &vae, &text_encoder})
    for (const auto& [name, tensor] : *part) all[name] = tensor.to(torch::kFloat32);
  write_tensors(file, all);
}

}  // namespace millrace
