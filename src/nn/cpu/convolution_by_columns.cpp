#include "cpu/convolution_by_columns.h"

#include <torch/autograd.h>

#include <vector>

#include "millrace/kernels/op_scope.h"

namespace millrace::nn {

namespace {

// One convolution's sizes. Inside, the batch is the innermost dimension, so that all copies are of whole rows.
struct Geometry {
  std::int64_t batch, channels, height, width, kernel, stride, padding;

  std::int64_t out_height() const { return (height + 2 * padding - kernel) / stride + 1; }
  std::int64_t out_width() const { return (width + 2 * padding - kernel) / stride + 1; }
  std::int64_t rows() const { return channels * kernel * kernel; }
};

Geometry geometry_of(const torch::Tensor& x, const torch::Tensor& weight, std::int64_t stride, std::int64_t padding) {
  return {x.size(0), x.size(1), x.size(2), x.size(3), weight.size(2), stride, padding};
}

// x (B, C, h, w) -> what each tap of the kernel sees: (C * k * k, h' * w' * B).
torch::Tensor unfold(const torch::Tensor& x, const Geometry& g) {
  const auto batch_last = x.reshape({g.batch, -1}).t().contiguous().view({g.channels, g.height, g.width, g.batch});
  const auto padded =
      g.padding == 0 ? batch_last : at::constant_pad_nd(batch_last, {0, 0, g.padding, g.padding, g.padding, g.padding});
  const auto taps = padded.unfold(1, g.kernel, g.stride).unfold(2, g.kernel, g.stride);  // (C, h', w', B, k, k)
  return taps.permute({0, 4, 5, 1, 2, 3}).reshape({g.rows(), -1});
}

// Unfold's transpose, the sum over the taps: (C * k * k, h' * w' * B) -> (B, C, h, w).
torch::Tensor fold(const torch::Tensor& columns, const Geometry& g) {
  const auto taps = columns.view({g.channels, g.kernel, g.kernel, g.out_height(), g.out_width(), g.batch});
  const auto padded =
      at::zeros({g.channels, g.height + 2 * g.padding, g.width + 2 * g.padding, g.batch}, columns.options());
  for (std::int64_t y = 0; y < g.kernel; ++y) {
    for (std::int64_t x = 0; x < g.kernel; ++x) {
      padded.slice(1, y, y + (g.out_height() - 1) * g.stride + 1, g.stride)
          .slice(2, x, x + (g.out_width() - 1) * g.stride + 1, g.stride)
          .add_(taps.select(1, y).select(1, x));
    }
  }
  const auto inner = padded.narrow(1, g.padding, g.height).narrow(2, g.padding, g.width);
  return inner.reshape({-1, g.batch}).t().contiguous().view({g.batch, g.channels, g.height, g.width});
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
    const auto out = at::addmm(bias.unsqueeze(1), weight.reshape({-1, g.rows()}), unfold(x, g));
    return out.view({-1, g.batch}).t().contiguous().view({g.batch, -1, g.out_height(), g.out_width()});
  }

  static std::vector<torch::Tensor> backward(torch::autograd::AutogradContext* context,
                                             std::vector<torch::Tensor> output_grads) {
    const kernels::OpScope scope("millrace::convolution_by_columns_backward");
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1];
    const Geometry g =
        geometry_of(x, weight, context->saved_data["stride"].toInt(), context->saved_data["padding"].toInt());
    const auto grad = output_grads[0].reshape({g.batch, -1}).t().contiguous().view({weight.size(0), -1});
    torch::Tensor x_grad, weight_grad, bias_grad;
    if (context->needs_input_grad(0)) x_grad = fold(at::mm(weight.reshape({-1, g.rows()}).t(), grad), g);
    if (context->needs_input_grad(1)) weight_grad = at::mm(grad, unfold(x, g).t()).view_as(weight);
    if (context->needs_input_grad(2)) bias_grad = grad.sum(1);
    return {x_grad, weight_grad, bias_grad, {}, {}};
  }
};

}  // namespace

torch::Tensor convolution_by_columns(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                                     std::int64_t stride, std::int64_t padding) {
  return ConvolutionByColumns::apply(x, weight, bias, stride, padding);
}

}  // namespace millrace::nn
