#include "millrace/models/resample.h"

namespace millrace {

Downsample2DImpl::Downsample2DImpl(std::int64_t channels, std::int64_t padding)
    : padding_(padding), conv(channels, channels, 3, 2, padding) {
  register_module("conv", conv);
}

torch::Tensor Downsample2DImpl::forward(const torch::Tensor& x) {
  return conv(padding_ == 0 ? at::constant_pad_nd(x, {0, 1, 0, 1}) : x);
}

Upsample2DImpl::Upsample2DImpl(std::int64_t channels) : conv(channels, channels, 3, 1, 1) {
  register_module("conv", conv);
}

torch::Tensor Upsample2DImpl::forward(const torch::Tensor& x, std::optional<Extent> size) {
  const Extent target = size.value_or(Extent{2 * x.size(2), 2 * x.size(3)});
  return conv(at::upsample_nearest2d(x, {target.height, target.width}));
}

}  // namespace millrace
