#include "millrace/kernels/ops.h"

#include <torch/autograd.h>

#include <optional>
#include <vector>

#include "geglu.h"
#include "gradient.h"
#include "millrace/kernels/op_scope.h"
#include "normals.h"
#include "tensor_arguments.h"

namespace millrace::kernels {

namespace {

using torch::autograd::AutogradContext;

struct GegluFunction : torch::autograd::Function<GegluFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const std::optional<Tensor>& optional_bias) {
    const OpScope scope("millrace::geglu");
    const auto bias = optional_bias.value_or(Tensor());
    TORCH_CHECK(x.dim() > 0 && x.numel() > 0 && x.size(-1) % 2 == 0, "x has shape ", x.sizes(), ", not (..., 2 C)");
    check_contiguous(x, "x");
    const std::int64_t channels = x.size(-1) / 2;
    auto sizes = x.sizes().vec();
    sizes.back() = channels;
    const auto y = at::empty(sizes, x.options());
    run(x, Geglu{.rows = y.numel() / channels,
                 .channels = static_cast<int>(channels),
                 .element = element_of(x, "x"),
                 .x = x.const_data_ptr(),
                 .bias = values_of(bias, "bias", {2 * channels}, x),
                 .y = y.mutable_data_ptr()});
    context->save_for_backward({x, bias});
    return y;
  }

  static std::vector<Tensor> backward(AutogradContext* context, std::vector<Tensor> y_grads) {
    const OpScope scope("millrace::geglu_backward");
    check_first_derivative();
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &bias = saved[1];
    const auto y_grad = y_grads[0].contiguous();
    const std::int64_t channels = y_grad.size(-1), rows = y_grad.numel() / channels;
    const auto x_grad = at::empty_like(x);
    const auto bias_grad = gradient_for(bias);
    const auto workspace = make_workspace(bias_grad.defined() ? geglu_workspace(rows, channels) : 0, x);
    run(x, GegluBackward{.rows = rows,
                         .channels = static_cast<int>(channels),
                         .element = element_of(x, "x"),
                         .x = x.const_data_ptr(),
                         .y_grad = y_grad.const_data_ptr(),
                         .bias = values_of(bias, "bias", {2 * channels}, x),
                         .x_grad = x_grad.mutable_data_ptr(),
                         .bias_grad = target_of(bias_grad),
                         .workspace = workspace.mutable_data_ptr()});
    return {x_grad, bias_grad};
  }
};

}  // namespace

Tensor geglu(const Tensor& x, const Tensor& bias) {
  return GegluFunction::apply(x, if_defined(bias));
}

Tensor unit_normals(const Tensor& words, at::IntArrayRef sizes) {
  const OpScope scope("millrace::unit_normals");
  TORCH_CHECK(words.dim() == 2 && words.size(1) == words_per_row, "words has shape ", words.sizes(), ", not (B, ",
              words_per_row, ")");
  check_numbers(words, "words", torch::kInt32, words);
  TORCH_CHECK(!sizes.empty() && sizes[0] == words.size(0), "sizes is ", sizes, " for ", words.size(0), " rows");
  TORCH_CHECK(words.size(0) <= 65535, "words has more than 65535 rows");
  const auto out = at::empty(sizes, words.options().dtype(torch::kFloat32));
  if (out.numel() == 0) return out;
  TORCH_CHECK(out.numel() / words.size(0) <= std::int64_t{4} << 32, "sizes is ", sizes,
              ": more than 2^34 numbers a row");
  run(words, Normals{.rows = words.size(0),
                     .per_row = out.numel() / words.size(0),
                     .words = words.const_data_ptr<std::int32_t>(),
                     .out = out.mutable_data_ptr<float>()});
  return out;
}

void sum_gradient(const Tensor& sum, const Tensor& gradient, bool replaces) {
  const OpScope scope("millrace::sum_gradient");
  TORCH_CHECK(sum.scalar_type() == torch::kFloat32, "sum has type ", sum.scalar_type(), ", not float32");
  TORCH_CHECK(sum.is_non_overlapping_and_dense(), "sum has gaps: strides ", sum.strides());
  check_shape(gradient, "gradient", sum.sizes());
  TORCH_CHECK(gradient.strides() == sum.strides(), "gradient has strides ", gradient.strides(), ", not ",
              sum.strides());
  check_device(gradient, "gradient", sum);
  if (sum.numel() == 0) return;
  run(sum, SumGradient{.n = sum.numel(),
                       .gradient = {gradient.const_data_ptr(), element_of(gradient, "gradient")},
                       .sum = sum.mutable_data_ptr<float>(),
                       .replaces = replaces});
}

}  // namespace millrace::kernels
