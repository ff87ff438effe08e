#include "cpu/convolution_by_columns.h"

#include <torch/autograd.h>

#include <vector>

#include "millrace/kernels/op_scope.h"

namespace millrace::nn {

namespace {

// One convolution's sizes.
struct Geometry {
  std::int64_t batch, channels, height, width, kernel, stride, padding;

  std::int64_t out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  std::int64_t out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  std::int64_t taps() const { return kernel * kernel * channels; }
};

Geometry geometry_of(const torch::Tensor& x, const torch::Tensor& weight, std::int64_t stride, std::int64_t padding) {
  return {x.size(0), x.size(1), x.size(2), x.size(3), weight.size(2), stride, padding};
}

// (B, C, h, w) -> (B h w, C), and back: views of channels-last images.
torch::Tensor pixels_of(const torch::Tensor& x) {
  return x.permute({0, 2, 3, 1}).reshape({-1, x.size(1)});
}
torch::Tensor images_of(const torch::Tensor& pixels, std::int64_t batch, std::int64_t height, std::int64_t width) {
  return pixels.view({batch, height, width, -1}).permute({0, 3, 1, 2});
}

// (O, C, k, k) -> (O, k k C), a view of a channels-last weight.
torch::Tensor rows_of(const torch::Tensor& weight) {
  return weight.permute({0, 2, 3, 1}).reshape({weight.size(0), -1});
}

// x -> what each pixel of the output sees: (B h' w', k k C).
torch::Tensor unfold(const torch::Tensor& x, const Geometry& g) {
  const auto pixels = x.permute({0, 2, 3, 1});
  const auto padded =
      g.padding == 0 ? pixels : at::constant_pad_nd(pixels, {0, 0, g.padding, g.padding, g.padding, g.padding});
  const auto taps = padded.unfold(1, g.kernel, g.stride).unfold(2, g.kernel, g.stride);  // (B, h', w', C, k, k)
  return taps.permute({0, 1, 2, 4, 5, 3}).reshape({-1, g.taps()});
}

// Unfold's transpose, the sum over the taps.
torch::Tensor fold(const torch::Tensor& columns, const Geometry& g) {
  const auto taps = columns.view({g.batch, g.out_height(), g.out_width(), g.kernel, g.kernel, g.channels});
  const auto padded =
      at::zeros({g.batch, g.height + 2 * g.padding, g.width + 2 * g.padding, g.channels}, columns.options());
  for (std::int64_t y = 0; y < g.kernel; ++y) {
    for (std::int64_t x = 0; x < g.kernel; ++x) {
      padded.slice(1, y, y + (g.out_height() - 1) * g.stride + 1, g.stride)
          .slice(2, x, x + (g.out_width() - 1) * g.stride + 1, g.stride)
          .add_(taps.select(3, y).select(3, x));
    }
  }
  const auto inner = padded.narrow(1, g.padding, g.height).narrow(2, g.padding, g.width);
  return images_of(inner.reshape({-1, g.channels}), g.batch, g.height, g.width);
}

// Convolution as one matrix product. The columns are made again in backward: cheaper than keeping k * k copies of x.
struct ConvolutionByColumns : torch::autograd::Function<ConvolutionByColumns> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight, const torch::Tensor& bias, std::int64_t stride,
                               std::int64_t padding) {
    const kernels::OpScope scope("millrace::convolution_by_columns");
    const Geometry g = geometry_of(x, weight, stride, padding);
    context->save_for_backward({x, weight});
    context->saved_data["stride"] = stride;
    context->saved_data["padding"] = padding;
    return images_of(at::addmm(bias, unfold(x, g), rows_of(weight).t()), g.batch, g.out_height(), g.out_width());
  }

  static std::vector<torch::Tensor> backward(torch::autograd::AutogradContext* context,
                                             std::vector<torch::Tensor> output_grads) {
    const kernels::OpScope scope("millrace::convolution_by_columns_backward");
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const Geometry g =
        geometry_of(x, weight, context->saved_data["stride"].toInt(), context->saved_data["padding"].toInt());
    const auto grad = pixels_of(output_grads[0]);
    torch::Tensor x_grad, weight_grad, bias_grad;
    if (context->needs_input_grad(0)) x_grad = fold(at::mm(grad, rows_of(weight)), g);
    if (context->needs_input_grad(1))
      weight_grad = images_of(at::mm(grad.t(), unfold(x, g)), weight.size(0), g.kernel, g.kernel);
    if (context->needs_input_grad(2)) bias_grad = grad.sum(0);
    return {x_grad, weight_grad, bias_grad, {}, {}};
  }
};

}  // namespace

torch::Tensor convolution_by_columns(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                                     std::int64_t stride, std::int64_t padding) {
  return ConvolutionByColumns::apply(x, weight, bias, stride, padding);
}

}  // namespace millrace::nn
