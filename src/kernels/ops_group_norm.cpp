#include <torch/autograd.h>

#include <optional>
#include <vector>

#include "group_norm_silu.h"
#include "millrace/kernels/op_scope.h"
#include "millrace/kernels/ops.h"
#include "tensor_arguments.h"

namespace millrace::kernels {

namespace {

using torch::autograd::AutogradContext;

constexpr auto channels_last = torch::MemoryFormat::ChannelsLast;

GroupNormShape group_norm_shape(const Tensor& x, std::int64_t groups) {
  TORCH_CHECK(x.dim() == 4 && x.numel() > 0, "x has shape ", x.sizes(), ", not (B, C, h, w)");
  TORCH_CHECK(x.is_contiguous(channels_last), "x is not channels-last: strides ", x.strides());
  TORCH_CHECK(groups > 0 && x.size(1) % groups == 0, "groups is ", groups, ", which does not divide ", x.size(1),
              " channels");
  TORCH_CHECK(x.size(0) <= 65535 && groups <= 65535, "x has more than 65535 images, or there are as many groups");
  return {x.size(0), x.size(2) * x.size(3), static_cast<int>(x.size(1)), static_cast<int>(groups)};
}

Addend addend_of(const Tensor& time, const Tensor& x_bias, const GroupNormShape& shape, const Tensor& x) {
  return {values_of(time, "time", {shape.batch, shape.channels}, x), parameter_of(x_bias, "x_bias", shape.channels, x)};
}

// {x, y}
struct GroupNormSiluFunction : torch::autograd::Function<GroupNormSiluFunction> {
  static std::vector<Tensor> forward(AutogradContext* context, const Tensor& x,
                                     const std::optional<Tensor>& optional_time,
                                     const std::optional<Tensor>& optional_x_bias, const Tensor& weight,
                                     const Tensor& bias, std::int64_t groups, double eps, bool with_silu) {
    const OpScope scope("millrace::group_norm_silu");
    const auto time = optional_time.value_or(Tensor()), x_bias = optional_x_bias.value_or(Tensor());
    const auto shape = group_norm_shape(x, groups);
    const auto y = at::empty_like(x, channels_last);
    const auto mean = make_statistics({shape.batch, groups}, x), rstd = make_statistics({shape.batch, groups}, x);
    const auto workspace = make_workspace(group_norm_silu_workspace(shape), x);
    run(x, GroupNormSilu{.shape = shape,
                         .element = element_of(x, "x"),
                         .with_silu = with_silu,
                         .eps = static_cast<float>(eps),
                         .x = x.const_data_ptr(),
                         .addend = addend_of(time, x_bias, shape, x),
                         .gamma = parameter_of(weight, "weight", shape.channels, x),
                         .beta = parameter_of(bias, "bias", shape.channels, x),
                         .y = y.mutable_data_ptr(),
                         .mean = mean.mutable_data_ptr<float>(),
                         .rstd = rstd.mutable_data_ptr<float>(),
                         .workspace = workspace.mutable_data_ptr()});
    context->save_for_backward({x, time, x_bias, weight, bias, mean, rstd});
    context->saved_data["groups"] = groups;
    context->saved_data["with_silu"] = with_silu;
    context->set_materialize_grads(false);
    return {x, y};
  }

  static std::vector<Tensor> backward(AutogradContext* context, std::vector<Tensor> grads) {
    const OpScope scope("millrace::group_norm_silu_backward");
    check_first_derivative();
    if (!grads[1].defined()) return {grads[0], {}, {}, {}, {}, {}, {}, {}};
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &time = saved[1], &x_bias = saved[2], &weight = saved[3], &bias = saved[4];
    const auto rest = grads[0].defined() ? grads[0].contiguous(channels_last) : Tensor();
    const auto y_grad = grads[1].contiguous(channels_last);
    const auto shape = group_norm_shape(x, context->saved_data["groups"].toInt());
    const auto x_grad = at::empty_like(x, channels_last);
    const auto time_grad = gradient_for(time), x_bias_grad = gradient_for(x_bias);
    const auto weight_grad = gradient_for(weight), bias_grad = gradient_for(bias);
    const auto workspace = make_workspace(group_norm_silu_workspace(shape), x);
    run(x, GroupNormSiluBackward{.shape = shape,
                                 .element = element_of(x, "x"),
                                 .with_silu = context->saved_data["with_silu"].toBool(),
                                 .x = x.const_data_ptr(),
                                 .y_grad = y_grad.const_data_ptr(),
                                 .x_grad_of_rest = rest.defined() ? rest.const_data_ptr() : nullptr,
                                 .addend = addend_of(time, x_bias, shape, x),
                                 .gamma = parameter_of(weight, "weight", shape.channels, x),
                                 .beta = parameter_of(bias, "bias", shape.channels, x),
                                 .mean = saved[5].const_data_ptr<float>(),
                                 .rstd = saved[6].const_data_ptr<float>(),
                                 .x_grad = x_grad.mutable_data_ptr(),
                                 .time_grad = target_of(time_grad),
                                 .x_bias_grad = target_of(x_bias_grad),
                                 .gamma_grad = target_of(weight_grad),
                                 .beta_grad = target_of(bias_grad),
                                 .workspace = workspace.mutable_data_ptr()});
    return {x_grad, time_grad, x_bias_grad, weight_grad, bias_grad, {}, {}, {}};
  }
};

}  // namespace

std::pair<Tensor, Tensor> group_norm_silu_beside(const Tensor& x, const Tensor& time, const Tensor& x_bias,
                                                 const Tensor& weight, const Tensor& bias, std::int64_t groups,
                                                 double eps, bool with_silu) {
  check_defined(weight, "weight");
  check_defined(bias, "bias");
  return pair_of(
      GroupNormSiluFunction::apply(x, if_defined(time), if_defined(x_bias), weight, bias, groups, eps, with_silu));
}

}  // namespace millrace::kernels
