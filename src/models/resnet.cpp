#include "millrace/models/resnet.h"

namespace millrace {

ResnetBlock2DImpl::ResnetBlock2DImpl(const ResnetOptions& o)
    : options_(o),
      norm1(o.groups, o.in_channels, o.eps),
      norm2(o.groups, o.out_channels, o.eps),
      conv1(o.in_channels, o.out_channels, 3, 1, 1),
      conv2(o.out_channels, o.out_channels, 3, 1, 1) {
  register_module("norm1", norm1);
  register_module("conv1", conv1);
  if (o.time_channels > 0) {
    time_emb_proj = register_module("time_emb_proj",
                                    nn::Linear(o.time_channels, o.scale_shift ? 2 * o.out_channels : o.out_channels));
  }
  register_module("norm2", norm2);
  register_module("conv2", conv2);
  if (o.in_channels != o.out_channels) {
    conv_shortcut = register_module("conv_shortcut", nn::Conv2d(o.in_channels, o.out_channels, 1));
  }
}

torch::Tensor ResnetBlock2DImpl::forward(const torch::Tensor& x, const torch::Tensor& time) {
  auto [input, hidden] = norm1->activated_beside(options_.activation, x);
  hidden = convolved_and_activated(hidden, time);
  if (options_.dropout > 0) hidden = at::dropout(hidden, options_.dropout, is_training());
  hidden = conv2->plus(hidden, [&, &in = input] { return conv_shortcut ? conv_shortcut(in) : in; });
  return options_.output_scale == 1 ? hidden : hidden / options_.output_scale;
}

torch::Tensor ResnetBlock2DImpl::convolved_and_activated(const torch::Tensor& x, const torch::Tensor& time) {
  if (options_.scale_shift && time_emb_proj) {
    const auto hidden = conv1(x);
    const auto scale_and_shift = time_emb_proj(time).unsqueeze(-1).unsqueeze(-1).chunk(2, 1);  // (B, C, 1, 1) each
    return nn::activate(options_.activation, norm2(hidden) * (1 + scale_and_shift[0]) + scale_and_shift[1]);
  }
  const auto [hidden, bias] = conv1->before_norm(x);
  const auto shift = time_emb_proj ? time_emb_proj(time) : torch::Tensor();  // (B, C)
  return norm2->activated(options_.activation, hidden, shift, bias);
}

}  // namespace millrace
