#include <torch/autograd.h>

#include <optional>
#include <vector>

#include "layer_norm.h"
#include "millrace/kernels/op_scope.h"
#include "millrace/kernels/ops.h"
#include "tensor_arguments.h"

namespace millrace::kernels {

namespace {

using torch::autograd::AutogradContext;

// {s, y}; s is x itself where there is no residual.
struct LayerNormFunction : torch::autograd::Function<LayerNormFunction> {
  static std::vector<Tensor> forward(AutogradContext* context, const Tensor& x,
                                     const std::optional<Tensor>& optional_residual, const Tensor& weight,
                                     const Tensor& bias, double eps) {
    const OpScope scope("millrace::layer_norm");
    const auto residual = optional_residual.value_or(Tensor());
    TORCH_CHECK(x.dim() > 0 && x.numel() > 0, "x has shape ", x.sizes(), ", not (..., C)");
    check_contiguous(x, "x");
    const auto other = values_of(residual, "residual", x.sizes(), x);
    TORCH_CHECK(!residual.defined() || residual.dtype() == x.dtype(), "residual has not the type of x");
    const std::int64_t channels = x.size(-1), rows = x.numel() / channels;
    const auto sum = residual.defined() ? at::empty_like(x) : Tensor(), y = at::empty_like(x);
    const auto mean = make_statistics({rows}, x), rstd = make_statistics({rows}, x);
    run(x, LayerNorm{.rows = rows,
                     .channels = static_cast<int>(channels),
                     .element = element_of(x, "x"),
                     .eps = static_cast<float>(eps),
                     .x = x.const_data_ptr(),
                     .residual = other.data,
                     .gamma = parameter_of(weight, "weight", channels, x),
                     .beta = parameter_of(bias, "bias", channels, x),
                     .sum = sum.defined() ? sum.mutable_data_ptr() : nullptr,
                     .y = y.mutable_data_ptr(),
                     .mean = mean.mutable_data_ptr<float>(),
                     .rstd = rstd.mutable_data_ptr<float>()});
    context->save_for_backward({sum.defined() ? sum : x, weight, bias, mean, rstd});
    context->saved_data["with_residual"] = residual.defined();
    context->set_materialize_grads(false);
    return {sum.defined() ? sum : x, y};
  }

  static std::vector<Tensor> backward(AutogradContext* context, std::vector<Tensor> output_grads) {
    const OpScope scope("millrace::layer_norm_backward");
    check_first_derivative();
    const auto saved = context->get_saved_variables();
    const auto &s = saved[0], &weight = saved[1], &bias = saved[2];
    const bool with_residual = context->saved_data["with_residual"].toBool();
    const auto s_grad = output_grads[0].defined() ? output_grads[0].contiguous() : Tensor();
    if (!output_grads[1].defined()) return {s_grad, with_residual ? s_grad : Tensor(), {}, {}, {}};
    const auto y_grad = output_grads[1].contiguous();
    const std::int64_t channels = s.size(-1), rows = s.numel() / channels;
    const auto x_grad = at::empty_like(s);
    const auto weight_grad = gradient_for(weight), bias_grad = gradient_for(bias);
    const bool with_parameters = weight_grad.defined() || bias_grad.defined();
    const auto workspace = make_workspace(with_parameters ? layer_norm_workspace(rows, channels) : 0, s);
    run(s, LayerNormBackward{.rows = rows,
                             .channels = static_cast<int>(channels),
                             .element = element_of(s, "x"),
                             .s = s.const_data_ptr(),
                             .y_grad = y_grad.const_data_ptr(),
                             .s_grad = s_grad.defined() ? s_grad.const_data_ptr() : nullptr,
                             .gamma = parameter_of(weight, "weight", channels, s),
                             .mean = saved[3].const_data_ptr<float>(),
                             .rstd = saved[4].const_data_ptr<float>(),
                             .x_grad = x_grad.mutable_data_ptr(),
                             .gamma_grad = target_of(weight_grad),
                             .beta_grad = target_of(bias_grad),
                             .workspace = workspace.mutable_data_ptr()});
    return {x_grad, with_residual ? x_grad : Tensor(), weight_grad, bias_grad, {}};
  }
};

}  // namespace

std::pair<Tensor, Tensor> layer_norm_beside(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check_defined(weight, "weight");
  check_defined(bias, "bias");
  return pair_of(LayerNormFunction::apply(x, std::nullopt, weight, bias, eps));
}

std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                         const Tensor& bias, double eps) {
  check_defined(residual, "residual");
  check_defined(weight, "weight");
  check_defined(bias, "bias");
  return pair_of(LayerNormFunction::apply(x, std::optional(residual), weight, bias, eps));
}

}  // namespace millrace::kernels
