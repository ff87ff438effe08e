#include <torch/autograd.h>

#include <optional>
#include <vector>

#include "bias.h"
#include "millrace/kernels/op_scope.h"
#include "millrace/kernels/ops.h"
#include "tensor_arguments.h"

namespace millrace::kernels {

namespace {

using torch::autograd::AutogradContext;

// Where the channels are: the last dimension of a matrix (..., C), the second of a map (B, C, h, w). Elements lie with
// the channels of a row side by side.
struct Layout {
  bool is_map;

  std::int64_t channels(const Tensor& x) const { return x.size(is_map ? 1 : -1); }
  torch::MemoryFormat format() const {
    return is_map ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  }
};

Tensor sum_over_rows(const Tensor& y_grad, Layout layout, const Tensor& bias) {
  const OpScope scope("millrace::bias_gradient");
  const auto channels = layout.channels(y_grad), rows = y_grad.numel() / channels;
  const auto bias_grad = at::empty_like(bias);
  const auto workspace = make_workspace(bias_gradient_workspace(rows, channels), y_grad);
  run(y_grad, BiasGradient{.rows = rows,
                           .channels = static_cast<int>(channels),
                           .element = element_of(y_grad, "the gradient of y"),
                           .y_grad = y_grad.const_data_ptr(),
                           .bias_grad = target_of(bias_grad),
                           .workspace = workspace.mutable_data_ptr()});
  return bias_grad;
}

struct Gradients {
  Tensor x, bias;  // x: also that of a residual
};
Gradients gradients_of(AutogradContext* context, Layout layout, const Tensor& y_grad) {
  check_first_derivative();
  const auto bias = context->get_saved_variables()[0];
  const auto x = y_grad.contiguous(layout.format());
  return {x, bias.requires_grad() ? sum_over_rows(x, layout, bias) : Tensor()};
}

struct AddBiasFunction : torch::autograd::Function<AddBiasFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& bias,
                        const std::optional<Tensor>& optional_residual) {
    const OpScope scope("millrace::add_bias");
    const auto residual = optional_residual.value_or(Tensor());
    TORCH_CHECK(x.dim() > 0 && x.numel() > 0, "x has shape ", x.sizes(), ", not (..., C) or (B, C, h, w)");
    const Layout layout{x.dim() == 4};
    TORCH_CHECK(x.is_contiguous(layout.format()), "x of shape ", x.sizes(), " has strides ", x.strides(),
                layout.is_map ? ": a map is channels-last" : ": a matrix is contiguous");
    if (residual.defined()) {
      check_shape(residual, "residual", x.sizes());
      TORCH_CHECK(residual.is_contiguous(layout.format()), "residual has strides ", residual.strides(),
                  ", not the layout of x");
      check_device(residual, "residual", x);
      TORCH_CHECK(residual.dtype() == x.dtype(), "residual has not the type of x");
    }
    const auto channels = layout.channels(x);
    const auto y = at::empty_like(x);
    run(x, AddBias{.rows = x.numel() / channels,
                   .channels = static_cast<int>(channels),
                   .element = element_of(x, "x"),
                   .x = x.const_data_ptr(),
                   .bias = parameter_of(bias, "bias", channels, x),
                   .residual = residual.defined() ? residual.const_data_ptr() : nullptr,
                   .y = y.mutable_data_ptr()});
    context->save_for_backward({bias});
    context->saved_data["is_map"] = layout.is_map;
    context->saved_data["with_residual"] = residual.defined();
    return y;
  }

  static std::vector<Tensor> backward(AutogradContext* context, std::vector<Tensor> y_grads) {
    const auto gradients = gradients_of(context, {context->saved_data["is_map"].toBool()}, y_grads[0]);
    return {gradients.x, gradients.bias, context->saved_data["with_residual"].toBool() ? gradients.x : Tensor()};
  }
};

struct BiasGradientFunction : torch::autograd::Function<BiasGradientFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& y, const Tensor& bias) {
    context->save_for_backward({bias});
    return y;
  }

  static std::vector<Tensor> backward(AutogradContext* context, std::vector<Tensor> y_grads) {
    const auto gradients = gradients_of(context, {/*is_map=*/false}, y_grads[0]);
    return {gradients.x, gradients.bias};
  }
};

}  // namespace

Tensor add_bias(const Tensor& x, const Tensor& bias, const Tensor& residual) {
  check_defined(bias, "bias");
  return AddBiasFunction::apply(x, bias, if_defined(residual));
}

Tensor with_bias_gradient(const Tensor& y, const Tensor& bias) {
  check_defined(bias, "bias");
  TORCH_CHECK(y.dim() > 0 && y.numel() > 0, "y has shape ", y.sizes(), ", not (..., C)");
  check_shape(bias, "bias", {y.size(-1)});
  return BiasGradientFunction::apply(y, bias);
}

}  // namespace millrace::kernels
