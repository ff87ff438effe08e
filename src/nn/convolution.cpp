#include "millrace/nn/convolution.h"

#include "cpu/convolution_by_columns.h"

namespace millrace::nn {

namespace {

// NOTE [Small, deep images on the CPU]: LibTorch's convolution kernels want rows of pixels and few channels. Where a
// U-Net's lower levels have many channels and few pixels, one matrix product over the whole batch, with what each tap
// of the kernel sees laid out as columns, is faster. Forward + backward of 3x3 kernels against LibTorch, 1 and 2
// threads: 0.40 of its time at 1280 channels and 4x4 pixels, 0.55 at 1280 and 8x8, 0.66 at 1280 and 16x16, 0.75 at 128
// and 2x2, 0.85 at 640 and 8x8; no gain below the limit here (0.95 to 1.0 at 320 and 8x8, 1.0 to 1.4 at 64 and 4x4),
// nor for 1x1.
constexpr std::int64_t min_channel_pairs_per_pixel = 2048;

// Pixels of an output's side, 0 where the kernel does not fit.
std::int64_t out_side(std::int64_t side, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  return side + 2 * padding < kernel ? 0 : (side + 2 * padding - kernel) / stride + 1;
}

// Only what is sure to be a convolution: whatever else there is to say about its arguments LibTorch says.
bool runs_better_by_columns(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                            std::int64_t stride, std::int64_t padding) {
  if (!x.is_cpu() || x.scalar_type() != torch::kFloat32 || x.dim() != 4 || x.numel() == 0 || !bias.defined())
    return false;
  const std::int64_t kernel = weight.size(2);
  if (kernel == 1) return false;
  const std::int64_t out_pixels =
      out_side(x.size(2), kernel, stride, padding) * out_side(x.size(3), kernel, stride, padding);
  return out_pixels > 0 && weight.size(0) * weight.size(1) >= min_channel_pairs_per_pixel * out_pixels;
}

}  // namespace

torch::Tensor conv2d(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                     std::int64_t stride, std::int64_t padding) {
  if (runs_better_by_columns(x, weight, bias, stride, padding))
    return convolution_by_columns(x, weight, bias, stride, padding);
  return at::conv2d(x, weight, bias, stride, padding);
}

}  // namespace millrace::nn
