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
  auto hidden = second_activation(conv1(norm1->activated(options_.activation, x)), time);
  if (options_.dropout > 0) hidden = at::dropout(hidden, options_.dropout, is_training());
  hidden = conv2(hidden);
  hidden = hidden + (conv_shortcut ? conv_shortcut(x) : x);
  return options_.output_scale == 1 ? hidden : hidden / options_.output_scale;
}

torch::Tensor ResnetBlock2DImpl::second_activation(const torch::Tensor& hidden, const torch::Tensor& time) {
  if (!time_emb_proj) return norm2->activated(options_.activation, hidden);
  const auto projected = time_emb_proj(time);  // (B, C or 2C)
  if (!options_.scale_shift) return norm2->activated(options_.activation, hidden, projected);
  const auto scale_and_shift = projected.unsqueeze(-1).unsqueeze(-1).chunk(2, 1);
  return nn::activate(options_.activation, norm2(hidden) * (1 + scale_and_shift[0]) + scale_and_shift[1]);
}

}  // namespace millrace
