#include "millrace/models/unet_cost.h"

#include "memory_tape.h"
#include "millrace/nn/attention.h"
#include "millrace/nn/fused.h"

namespace millrace {

namespace {

// The forward pass of UNet2DConditionModel on sizes: statement by statement that of the classes named here, so that
// what is let go of early is let go of early here, and every operation is counted. What each layer keeps for its
// backward stands in the first part. Left out: whatever is no feature map, as the timestep's embedding and the
// statistics of norms, and most of what kernels need for themselves.
class UNetWalk {
 public:
  UNetWalk(const UNet2DConditionConfig& config, const UNetPass& pass)
      : config_(config),
        pass_(pass),
        element_bytes_(c10::elementSize(pass.dtype)),
        tape_(pass.batch * element_bytes_) {}

  // Of one sample.
  double forward_flops() {
    forward();
    return flops_;
  }

  std::int64_t peak_bytes() {
    tape_.backward(forward());
    return tape_.peak();
  }

 private:
  // ---- layers ----------------------------------------------------------------------------------------------------

  // Norms and activations.
  FeatureMap pointwise(const FeatureMap& x) { return tape_.apply(x.channels, x.size, {x}, {x.memory}); }

  FeatureMap norm(const FeatureMap& x) { return pointwise(x); }
  FeatureMap activate(const FeatureMap& x) { return pointwise(x); }

  // nn::GroupNorm::activated.
  bool norm_and_activation_are_one(const FeatureMap& x) const {
    return pass_.fused_kernels && pass_.channels_last && config_.act_fn == nn::Activation::silu &&
           nn::own_kernels_take(pass_.device, x.channels);
  }
  FeatureMap norm_and_activate(const FeatureMap& x) {
    return norm_and_activation_are_one(x) ? pointwise(x) : activate(norm(x));
  }
  FeatureMap shift_norm_and_activate(const FeatureMap& x) {
    return norm_and_activate(norm_and_activation_are_one(x) ? x : add_vector(x));
  }

  // Scratch: the gradient of the weights, which leaves for its bucket at once.
  FeatureMap linear(const FeatureMap& x, std::int64_t channels) {
    count(x.channels * channels, x.size);
    return tape_.apply(channels, x.size, {x}, {x.memory}, channels * x.channels * element_bytes_);
  }
  // Several side by side, whose joined weights are kept for the gradient of x.
  FeatureMap joined_linear(const FeatureMap& x, std::int64_t channels) {
    count(x.channels * channels, x.size);
    const auto weights = tape_.allocate(channels * x.channels * element_bytes_);
    return tape_.apply(channels, x.size, {x}, {x.memory, x.gradient ? weights : nullptr}, *weights);
  }

  // More scratch: both maps once more, in the order that the kernel wants, unless they are in it.
  FeatureMap conv(const FeatureMap& x, std::int64_t channels, std::int64_t kernel, std::int64_t stride,
                  std::int64_t padding) {
    const auto out = [&](std::int64_t in) { return (in + 2 * padding - kernel) / stride + 1; };
    const Extent size{out(x.size.height), out(x.size.width)};
    count(x.channels * channels * kernel * kernel, size);
    const auto copies = kernel > 1 && !pass_.channels_last ? *x.memory + tape_.map_bytes(channels, size) : 0;
    return tape_.apply(channels, size, {x}, {x.memory},
                       channels * x.channels * kernel * kernel * element_bytes_ + copies);
  }
  FeatureMap conv_3x3(const FeatureMap& x, std::int64_t channels) { return conv(x, channels, 3, 1, 1); }

  FeatureMap add(const FeatureMap& x, const FeatureMap& y) { return tape_.join(x.channels, x.size, {x, y}); }
  FeatureMap add_vector(const FeatureMap& x) { return tape_.join(x.channels, x.size, {x}); }
  FeatureMap concatenate(const FeatureMap& x, const FeatureMap& y) {
    return tape_.join(x.channels + y.channels, x.size, {x, y});
  }
  FeatureMap copy(const FeatureMap& x, Extent size) { return tape_.apply(x.channels, size, {x}); }

  // nn::attention, whose output has the size of x. It keeps its output, too, as the layer behind it does anyway.
  // Scratch: gradients of q, k and v beside those of the maps that they are parts of.
  FeatureMap attention(const FeatureMap& x, std::int64_t keys, std::int64_t heads, const FeatureMaps& qkv,
                       std::int64_t scratch = 0) {
    count(2 * x.channels * keys, x.size);
    const auto floats = nn::attention_floats_kept(pass_.device, pass_.dtype, tokens(x), keys, x.channels / heads);
    std::vector<Allocation> kept = {
        tape_.allocate(pass_.batch * heads * floats * static_cast<std::int64_t>(sizeof(float)))};
    for (const auto& map : qkv) kept.push_back(map.memory);
    return tape_.apply(x.channels, x.size, qkv, kept, scratch);
  }
  void count(std::int64_t multiplications, Extent outputs) {
    flops_ += 2.0 * static_cast<double>(multiplications) * static_cast<double>(outputs.height * outputs.width);
  }
  static std::int64_t tokens(const FeatureMap& x) { return x.size.height * x.size.width; }

  // nn::geglu. Scratch: the gradient of gelu(gate).
  FeatureMap geglu(const FeatureMap& x) {
    if (pass_.fused_kernels && nn::own_kernels_take(pass_.device, x.channels / 2))
      return tape_.apply(x.channels / 2, x.size, {x}, {x.memory});
    const auto gate = tape_.allocate(*x.memory / 2);
    return tape_.apply(x.channels / 2, x.size, {x}, {x.memory, gate}, *gate);
  }

  // ---- parts of blocks -------------------------------------------------------------------------------------------

  // ResnetBlock2D.
  FeatureMap resnet(const FeatureMap& x, std::int64_t channels) {
    auto hidden = conv_3x3(norm_and_activate(x), channels);
    hidden = config_.scale_shift ? activate(add_vector(pointwise(norm(hidden)))) : shift_norm_and_activate(hidden);
    const auto mask = config_.dropout > 0 ? tape_.allocate(*hidden.memory) : nullptr;
    if (mask) hidden = tape_.apply(channels, hidden.size, {hidden}, {mask});
    hidden = conv_3x3(hidden, channels);
    return add(hidden, x.channels != channels ? conv(x, channels, 1, 1, 0) : x);
  }

  // Attention.
  FeatureMap attend(const FeatureMap& x, const FeatureMap& context, std::int64_t heads) {
    const auto attended = [&] {
      if (!pass_.joined_projections) {
        const auto q = linear(x, x.channels), k = linear(context, x.channels), v = linear(context, x.channels);
        return attention(x, tokens(context), heads, {q, k, v});
      }
      if (context.memory == x.memory) {
        const auto qkv = joined_linear(x, 3 * x.channels);
        return attention(x, tokens(x), heads, {qkv}, *qkv.memory);
      }
      const auto q = linear(x, x.channels), kv = joined_linear(context, 2 * x.channels);
      return attention(x, tokens(context), heads, {q, kv}, *kv.memory);
    };
    return linear(attended(), x.channels);
  }

  // FeedForward.
  FeatureMap feed_forward(const FeatureMap& x) { return linear(geglu(linear(x, 8 * x.channels)), x.channels); }

  // BasicTransformerBlock.
  FeatureMap transformer_block(FeatureMap x, const FeatureMap& context, std::int64_t heads, bool only_cross_attention) {
    const auto normed = norm(x);
    x = add(attend(normed, only_cross_attention ? context : normed, heads), x);
    x = add(attend(norm(x), context, heads), x);
    return add(feed_forward(norm(x)), x);
  }

  // Transformer2DModel.
  FeatureMap transformer(const FeatureMap& x, const FeatureMap& context, std::int64_t heads, std::int64_t layers,
                         bool only_cross_attention) {
    const auto normed = norm(x);
    auto tokens = linear(pass_.channels_last ? normed : copy(normed, x.size), x.channels / heads * heads);
    for (std::int64_t i = 0; i < layers; ++i) tokens = transformer_block(tokens, context, heads, only_cross_attention);
    return add(x, linear(tokens, x.channels));
  }

  // ---- blocks ----------------------------------------------------------------------------------------------------

  // DownBlock2D: x and context -> the skip connections.
  FeatureMaps down_block(std::size_t level, const FeatureMaps& inputs) {
    auto x = inputs[0];
    FeatureMaps maps;
    for (std::int64_t i = 0; i < config_.layers_per_block[level]; ++i) {
      x = resnet(x, config_.block_out_channels[level]);
      if (config_.down_cross_attention[level])
        x = transformer(x, inputs[1], config_.heads[level], config_.down_transformer_layers[level][i],
                        config_.only_cross_attention[level]);
      maps.push_back(x);
    }
    if (level + 1 == config_.levels()) return maps;
    if (config_.downsample_padding == 0) x = copy(x, {x.size.height + 1, x.size.width + 1});
    maps.push_back(conv(x, x.channels, 3, 2, config_.downsample_padding));
    return maps;
  }

  // UNetMidBlock2D: x and context.
  FeatureMaps mid_block(const FeatureMaps& inputs) {
    const std::size_t last = config_.levels() - 1;
    const auto x = resnet(inputs[0], inputs[0].channels);
    if (config_.mid == UNet2DConditionConfig::Mid::resnet) return {x};
    const auto layers = config_.down_transformer_layers[last].front();
    return {resnet(transformer(x, inputs[1], config_.heads[last], layers, false), x.channels)};
  }

  // UpBlock2D: x, context and the skip connections, the last one first.
  FeatureMaps up_block(std::size_t i, Extent next_size, const FeatureMaps& inputs) {
    const std::size_t level = config_.levels() - 1 - i;
    auto x = inputs[0];
    for (std::int64_t j = 0; j <= config_.layers_per_block[level]; ++j) {
      x = resnet(concatenate(x, inputs[inputs.size() - 1 - j]), config_.block_out_channels[level]);
      if (config_.up_cross_attention[i])
        x = transformer(x, inputs[1], config_.heads[level], config_.up_transformer_layers[i][j],
                        config_.only_cross_attention[level]);
    }
    return {level > 0 ? conv_3x3(copy(x, next_size), x.channels) : x};
  }

  // ---- UNet2DConditionModel --------------------------------------------------------------------------------------

  FeatureMaps run_block(const MemoryTape::Segment& block, const FeatureMaps& inputs) {
    return pass_.gradient_checkpointing ? tape_.checkpoint(block, inputs) : block(inputs);
  }

  FeatureMap input(std::int64_t channels, Extent size) {
    auto map = tape_.make_map(channels, size);
    map.gradient = nullptr;
    return map;
  }

  FeatureMap forward() {
    const auto sample = input(config_.in_channels, {pass_.height, pass_.width});
    const auto context = input(config_.cross_attention_dim.front(), {pass_.tokens, 1});
    auto x =
        conv(sample, config_.block_out_channels.front(), config_.conv_in_kernel, 1, (config_.conv_in_kernel - 1) / 2);

    FeatureMaps skips = {x};
    for (std::size_t level = 0; level < config_.levels(); ++level) {
      const auto run = [this, level](const FeatureMaps& in) { return down_block(level, in); };
      const auto maps = run_block(run, {x, context});
      skips.insert(skips.end(), maps.begin(), maps.end());
      x = maps.back();
    }

    if (config_.mid != UNet2DConditionConfig::Mid::none)
      x = run_block([this](const FeatureMaps& in) { return mid_block(in); }, {x, context}).front();

    for (std::size_t i = 0; i < config_.levels(); ++i) {
      const auto first = skips.end() - (config_.layers_per_block[config_.levels() - 1 - i] + 1);
      FeatureMaps inputs = {x, context};
      inputs.insert(inputs.end(), first, skips.end());
      skips.erase(first, skips.end());
      const auto next_size = skips.empty() ? x.size : skips.back().size;
      const auto run = [this, i, next_size](const FeatureMaps& in) { return up_block(i, next_size, in); };
      x = run_block(run, inputs).front();
    }
    return conv(norm_and_activate(x), config_.out_channels, config_.conv_out_kernel, 1,
                (config_.conv_out_kernel - 1) / 2);
  }

  const UNet2DConditionConfig& config_;
  const UNetPass pass_;
  const std::int64_t element_bytes_;
  MemoryTape tape_;
  double flops_ = 0;
};

}  // namespace

std::int64_t unet_activation_bytes(const UNet2DConditionConfig& config, const UNetPass& pass) {
  return UNetWalk(config, pass).peak_bytes();
}

double unet_forward_flops(const UNet2DConditionConfig& config, std::int64_t height, std::int64_t width,
                          std::int64_t tokens) {
  return UNetWalk(config, {.batch = 1, .height = height, .width = width, .tokens = tokens}).forward_flops();
}

}  // namespace millrace
