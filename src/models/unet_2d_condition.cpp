#include "millrace/models/unet_2d_condition.h"

#include <fmt/format.h>

#include <utility>

#include "millrace/nn/gradient_checkpoint.h"
#include "millrace/nn/timestep_embedding.h"

namespace millrace {

TimestepEmbeddingImpl::TimestepEmbeddingImpl(const UNet2DConditionConfig& config)
    : activation_(config.act_fn),
      post_activation_(config.timestep_post_act),
      linear_1(config.block_out_channels.front(), config.time_channels()),
      linear_2(config.time_channels(), config.time_channels()) {
  register_module("linear_1", linear_1);
  register_module("linear_2", linear_2);
}

torch::Tensor TimestepEmbeddingImpl::forward(const torch::Tensor& x) {
  const auto embedding = linear_2(nn::activate(activation_, linear_1(x)));
  return post_activation_ ? nn::activate(*post_activation_, embedding) : embedding;
}

UNet2DConditionModelImpl::UNet2DConditionModelImpl(const UNet2DConditionConfig& c)
    : config_(c),
      conv_in(c.in_channels, c.block_out_channels.front(), c.conv_in_kernel, 1, (c.conv_in_kernel - 1) / 2),
      time_embedding(c),
      down_blocks(nn::make_list<DownBlock2D>()),
      up_blocks(nn::make_list<UpBlock2D>()),
      conv_norm_out(c.norm_num_groups, c.block_out_channels.front(), c.norm_eps),
      conv_out(c.block_out_channels.front(), c.out_channels, c.conv_out_kernel, 1, (c.conv_out_kernel - 1) / 2) {
  register_module("conv_in", conv_in);
  register_module("time_embedding", time_embedding);
  register_module("down_blocks", down_blocks);
  auto skip_channels = add_down_blocks();
  add_mid_block();
  register_module("up_blocks", up_blocks);
  add_up_blocks(std::move(skip_channels));
  register_module("conv_norm_out", conv_norm_out);
  register_module("conv_out", conv_out);
}

UNetBlockOptions UNet2DConditionModelImpl::block_options(bool cross_attention, std::size_t level) const {
  const auto& c = config_;
  UNetBlockOptions options;
  options.resnet = {.in_channels = 0,
                    .out_channels = 0,
                    .time_channels = c.time_channels(),
                    .groups = c.norm_num_groups,
                    .eps = c.norm_eps,
                    .activation = c.act_fn,
                    .dropout = c.dropout,
                    .scale_shift = c.scale_shift};
  if (cross_attention) {
    options.transformer = {.heads = c.heads[level],
                           .context_channels = c.cross_attention_dim[level],
                           .groups = c.norm_num_groups,
                           .linear_projection = c.use_linear_projection,
                           .only_cross_attention = c.only_cross_attention[level]};
  }
  return options;
}

// Returns the channels of all skip connections, in the order in which they are made.
std::vector<std::int64_t> UNet2DConditionModelImpl::add_down_blocks() {
  const auto& c = config_;
  std::int64_t channels = c.block_out_channels.front();
  std::vector<std::int64_t> skip_channels = {channels};
  for (std::size_t level = 0; level < c.levels(); ++level) {
    const std::int64_t out_channels = c.block_out_channels[level];
    const bool last = level + 1 == c.levels();
    auto options = block_options(c.down_cross_attention[level], level);
    options.transformer_layers = c.down_transformer_layers[level];
    down_blocks->add(DownBlock2D(options, channels, out_channels, c.layers_per_block[level],
                                 last ? std::nullopt : std::optional(c.downsample_padding)));
    skip_channels.insert(skip_channels.end(), static_cast<std::size_t>(c.layers_per_block[level] + !last),
                         out_channels);
    channels = out_channels;
  }
  return skip_channels;
}

void UNet2DConditionModelImpl::add_mid_block() {
  using Mid = UNet2DConditionConfig::Mid;
  if (config_.mid == Mid::none) return;
  const std::size_t last = config_.levels() - 1;
  auto options = block_options(config_.mid == Mid::cross_attention, last);
  options.resnet.output_scale = config_.mid_block_scale_factor;
  if (options.transformer) options.transformer->only_cross_attention = false;  // diffusers' mid block does not know it
  options.transformer_layers = {config_.down_transformer_layers[last].front()};
  mid_block = register_module("mid_block", UNetMidBlock2D(options, config_.block_out_channels[last]));
}

void UNet2DConditionModelImpl::add_up_blocks(std::vector<std::int64_t> skip_channels) {
  const auto& c = config_;
  std::int64_t channels = c.block_out_channels.back();
  for (std::size_t i = 0; i < c.levels(); ++i) {
    const std::size_t level = c.levels() - 1 - i;
    const auto layers = static_cast<std::ptrdiff_t>(c.layers_per_block[level] + 1);
    const std::vector<std::int64_t> used(skip_channels.rbegin(), skip_channels.rbegin() + layers);
    skip_channels.resize(skip_channels.size() - used.size());
    auto options = block_options(c.up_cross_attention[i], level);
    options.transformer_layers = c.up_transformer_layers[i];
    up_blocks->add(UpBlock2D(options, channels, c.block_out_channels[level], used, level > 0));
    channels = c.block_out_channels[level];
  }
}

// (B, time_channels), already through the activation with which every resnet begins.
torch::Tensor UNet2DConditionModelImpl::embed_time(const torch::Tensor& sample, const torch::Tensor& timestep) {
  const auto steps = timestep.reshape({-1}).expand({sample.size(0)});
  const auto waves =
      nn::timestep_embedding(steps, config_.block_out_channels.front(), config_.flip_sin_to_cos, config_.freq_shift);
  auto embedding = time_embedding(waves.to(sample.scalar_type()));
  if (config_.time_embedding_act_fn) embedding = nn::activate(*config_.time_embedding_act_fn, embedding);
  return nn::activate(config_.act_fn, embedding);
}

template <class Block>
std::vector<torch::Tensor> UNet2DConditionModelImpl::run_block(Block block, const Tensors& inputs) {
  if (!checkpointing_ || !torch::GradMode::is_enabled()) return block(inputs);
  return nn::checkpoint(block, inputs, is_training() && config_.dropout > 0);
}

torch::Tensor UNet2DConditionModelImpl::forward(torch::Tensor sample, const torch::Tensor& timestep,
                                                const torch::Tensor& encoder_hidden_states) {
  const auto time = embed_time(sample, timestep);
  const auto& context = encoder_hidden_states;
  auto x = conv_in(config_.center_input_sample ? 2 * sample - 1 : sample);

  Tensors skips = {x};
  for (auto& block : *down_blocks) {
    const auto maps =
        run_block([block](const Tensors& in) mutable { return block(in[0], in[1], in[2]); }, {x, time, context});
    skips.insert(skips.end(), maps.begin(), maps.end());
    x = maps.back();
  }

  if (mid_block) {
    const auto run = [block = mid_block](const Tensors& in) mutable { return Tensors{block(in[0], in[1], in[2])}; };
    x = run_block(run, {x, time, context}).front();
  }

  for (auto& block : *up_blocks) {
    const auto first = skips.end() - static_cast<std::ptrdiff_t>(block->layers());
    Tensors inputs = {x, time, context};
    inputs.insert(inputs.end(), first, skips.end());
    skips.erase(first, skips.end());
    // The size of the next level's maps: twice this one's, or one less where the way down rounded up.
    std::optional<Extent> size;
    if (block->upsamples()) size = Extent{skips.back().size(2), skips.back().size(3)};
    const auto run = [block, size](const Tensors& in) mutable {
      return Tensors{block(in[0], Tensors(in.begin() + 3, in.end()), in[1], in[2], size)};
    };
    x = run_block(run, inputs).front();
  }
  return conv_out(conv_norm_out->activated(config_.act_fn, x));
}

// Within a resnet, a transformer and whatever else has no parts of these kinds, registration is in order of execution.
// Blocks register their transformers before their resnets, and run them by turns.
std::vector<std::string> execution_order(UNet2DConditionModelImpl& unet) {
  std::vector<std::string> order;
  const auto add = [&](const std::string& path, const torch::nn::Module* module) {
    if (module == nullptr) return;
    for (const auto& parameter : module->named_parameters()) order.push_back(path + '.' + parameter.key());
  };
  const auto add_block = [&](const std::string& path, torch::nn::Module& block) {
    const auto parts = block.named_children();
    const auto part = [&](const std::string& list, std::size_t i) -> const torch::nn::Module* {
      const auto* parent = parts.find(list);
      const auto children = parent ? (*parent)->children() : std::vector<std::shared_ptr<torch::nn::Module>>();
      return i < children.size() ? children[i].get() : nullptr;
    };
    for (std::size_t i = 0; i < parts["resnets"]->children().size(); ++i)
      for (const std::string list : {"resnets", "attentions"})
        add(fmt::format("{}.{}.{}", path, list, i), part(list, i));
    for (const std::string list : {"downsamplers", "upsamplers"})
      add(fmt::format("{}.{}.0", path, list), part(list, 0));
  };
  const auto parts = unet.named_children();
  const auto add_blocks = [&](const std::string& list) {
    const auto blocks = parts[list]->children();
    for (std::size_t i = 0; i < blocks.size(); ++i) add_block(fmt::format("{}.{}", list, i), *blocks[i]);
  };
  for (const std::string end : {"time_embedding", "conv_in"}) add(end, parts[end].get());
  add_blocks("down_blocks");
  if (const auto* mid = parts.find("mid_block")) add_block("mid_block", **mid);
  add_blocks("up_blocks");
  for (const std::string end : {"conv_norm_out", "conv_out"}) add(end, parts[end].get());
  return order;
}

}  // namespace millrace
