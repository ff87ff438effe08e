#include "millrace/models/vae_blocks.h"

#include "millrace/nn/attention.h"

namespace millrace {

namespace {

constexpr double norm_eps = 1e-6;

ResnetBlock2D make_vae_resnet(const CoderOptions& options, std::int64_t in, std::int64_t out) {
  return ResnetBlock2D(ResnetOptions{.in_channels = in,
                                     .out_channels = out,
                                     .groups = options.groups,
                                     .eps = norm_eps,
                                     .activation = options.activation});
}

nn::List<ResnetBlock2D> make_resnets(const CoderOptions& options, std::int64_t in, std::int64_t out,
                                     std::int64_t count) {
  auto list = nn::make_list<ResnetBlock2D>();
  for (std::int64_t i = 0; i < count; ++i) list->add(make_vae_resnet(options, i == 0 ? in : out, out));
  return list;
}

}  // namespace

VaeAttentionImpl::VaeAttentionImpl(std::int64_t channels, std::int64_t groups)
    : group_norm(groups, channels, norm_eps),
      to_q(channels, channels),
      to_k(channels, channels),
      to_v(channels, channels),
      to_out(nn::make_list<nn::Linear>()) {
  register_module("group_norm", group_norm);
  register_module("to_q", to_q);
  register_module("to_k", to_k);
  register_module("to_v", to_v);
  register_module("to_out", to_out);
  to_out->add(nn::Linear(channels, channels));
}

torch::Tensor VaeAttentionImpl::forward(const torch::Tensor& x) {
  const auto tokens = group_norm(x).flatten(2).transpose(1, 2);  // (B, h w, C)
  const auto attended = nn::attention(to_q(tokens), to_k(tokens), to_v(tokens), 1);
  return x + (*to_out)[0](attended).transpose(1, 2).view_as(x);
}

VaeMidBlockImpl::VaeMidBlockImpl(const CoderOptions& options)
    : resnets(make_resnets(options, options.channels.back(), options.channels.back(), 2)) {
  if (options.mid_attention) {
    attentions = register_module("attentions", nn::make_list<VaeAttention>());
    attentions->add(VaeAttention(options.channels.back(), options.groups));
  }
  register_module("resnets", resnets);
}

torch::Tensor VaeMidBlockImpl::forward(torch::Tensor x) {
  x = (*resnets)[0](x);
  if (attentions) x = (*attentions)[0](x);
  return (*resnets)[1](x);
}

DownEncoderBlock2DImpl::DownEncoderBlock2DImpl(const CoderOptions& options, std::int64_t in_channels,
                                               std::int64_t out_channels, bool downsample)
    : resnets(make_resnets(options, in_channels, out_channels, options.layers_per_block)) {
  register_module("resnets", resnets);
  if (!downsample) return;
  downsamplers = register_module("downsamplers", nn::make_list<Downsample2D>());
  downsamplers->add(Downsample2D(out_channels, 0));
}

torch::Tensor DownEncoderBlock2DImpl::forward(torch::Tensor x) {
  for (auto& resnet : *resnets) x = resnet(x);
  return downsamplers ? (*downsamplers)[0](x) : x;
}

UpDecoderBlock2DImpl::UpDecoderBlock2DImpl(const CoderOptions& options, std::int64_t in_channels,
                                           std::int64_t out_channels, bool upsample)
    : resnets(make_resnets(options, in_channels, out_channels, options.layers_per_block + 1)) {
  register_module("resnets", resnets);
  if (!upsample) return;
  upsamplers = register_module("upsamplers", nn::make_list<Upsample2D>());
  upsamplers->add(Upsample2D(out_channels));
}

torch::Tensor UpDecoderBlock2DImpl::forward(torch::Tensor x) {
  for (auto& resnet : *resnets) x = resnet(x);
  return upsamplers ? (*upsamplers)[0](x) : x;
}

VaeEncoderImpl::VaeEncoderImpl(const CoderOptions& options, std::int64_t in_channels, std::int64_t out_channels)
    : conv_in(in_channels, options.channels.front(), 3, 1, 1),
      down_blocks(nn::make_list<DownEncoderBlock2D>()),
      mid_block(options),
      conv_norm_out(options.groups, options.channels.back(), norm_eps),
      conv_out(options.channels.back(), out_channels, 3, 1, 1) {
  register_module("conv_in", conv_in);
  register_module("down_blocks", down_blocks);
  std::int64_t channels = options.channels.front();
  for (const std::int64_t out : options.channels) {
    const bool last = down_blocks->size() + 1 == options.channels.size();
    down_blocks->add(DownEncoderBlock2D(options, channels, out, !last));
    channels = out;
  }
  register_module("mid_block", mid_block);
  register_module("conv_norm_out", conv_norm_out);
  register_module("conv_out", conv_out);
}

torch::Tensor VaeEncoderImpl::forward(torch::Tensor x) {
  x = conv_in(x);
  for (auto& block : *down_blocks) x = block(x);
  return conv_out(
      conv_norm_out->activated(nn::Activation::silu, mid_block(x)));  // SiLU whatever the activation of the resnets
}

VaeDecoderImpl::VaeDecoderImpl(const CoderOptions& options, std::int64_t in_channels, std::int64_t out_channels)
    : conv_in(in_channels, options.channels.back(), 3, 1, 1),
      mid_block(options),
      up_blocks(nn::make_list<UpDecoderBlock2D>()),
      conv_norm_out(options.groups, options.channels.front(), norm_eps),
      conv_out(options.channels.front(), out_channels, 3, 1, 1) {
  register_module("conv_in", conv_in);
  register_module("mid_block", mid_block);
  register_module("up_blocks", up_blocks);
  std::int64_t channels = options.channels.back();
  for (std::size_t level = options.channels.size(); level-- > 0;) {
    up_blocks->add(UpDecoderBlock2D(options, channels, options.channels[level], level > 0));
    channels = options.channels[level];
  }
  register_module("conv_norm_out", conv_norm_out);
  register_module("conv_out", conv_out);
}

torch::Tensor VaeDecoderImpl::forward(torch::Tensor x) {
  x = mid_block(conv_in(x));
  for (auto& block : *up_blocks) x = block(x);
  return conv_out(conv_norm_out->activated(nn::Activation::silu, x));
}

}  // namespace millrace
