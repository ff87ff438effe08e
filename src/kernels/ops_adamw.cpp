#include <cmath>

#include "adamw.h"
#include "millrace/kernels/op_scope.h"
#include "millrace/kernels/ops.h"
#include "tensor_arguments.h"

namespace millrace::kernels {

namespace {

Values gradient_of(const Tensor& gradient) {
  TORCH_CHECK(gradient.dim() == 1, "gradient has shape ", gradient.sizes(), ", not (n)");
  TORCH_CHECK(gradient.dtype() == torch::kFloat32 || gradient.dtype() == torch::kBFloat16, "gradient has type ",
              gradient.scalar_type(), ", not float32 or bfloat16");
  check_contiguous(gradient, "gradient");
  return {gradient.const_data_ptr(), element_of(gradient, "gradient")};
}

float* master_of(const Tensor& tensor, const char* name, const Tensor& gradient) {
  check_shape(tensor, name, gradient.sizes());
  check_numbers(tensor, name, torch::kFloat32, gradient);
  return tensor.mutable_data_ptr<float>();
}

Target published_of(const Tensor& tensor, const Tensor& gradient) {
  if (!tensor.defined()) return {};
  check_shape(tensor, "published", gradient.sizes());
  check_contiguous(tensor, "published");
  check_device(tensor, "published", gradient);
  return {tensor.mutable_data_ptr(), element_of(tensor, "published")};
}

}  // namespace

AdamwStep make_adamw_step(const AdamwSettings& settings) {
  const auto step = static_cast<double>(settings.step);
  const double bias_correction1 = 1 - std::pow(settings.beta1, step);
  const double bias_correction2 = 1 - std::pow(settings.beta2, step);
  return {.gradient_factor = static_cast<float>(settings.gradient_factor),
          .decay = static_cast<float>(1 - settings.lr * settings.weight_decay),
          .beta1 = static_cast<float>(settings.beta1),
          .beta2 = static_cast<float>(settings.beta2),
          .one_minus_beta1 = static_cast<float>(1 - settings.beta1),  // in float32 0.999 would leave 1.3e-5 too little
          .one_minus_beta2 = static_cast<float>(1 - settings.beta2),
          .step_size = static_cast<float>(settings.lr / bias_correction1),
          .inverse_root = static_cast<float>(1 / std::sqrt(bias_correction2)),
          .eps = static_cast<float>(settings.eps),
          .ema_weight = static_cast<float>(1 - settings.ema_decay)};
}

void square_sum(const Tensor& gradient, const Tensor& sum) {
  const OpScope scope("millrace::square_sum");
  TORCH_CHECK(sum.numel() == 1, "sum has ", sum.numel(), " elements, not one");
  check_numbers(sum, "sum", torch::kFloat64, gradient);
  const auto partials = at::empty({square_sum_partials}, sum.options());
  run(gradient, SquareSum{.gradient = gradient_of(gradient),
                          .n = gradient.numel(),
                          .partials = partials.mutable_data_ptr<double>(),
                          .sum = sum.mutable_data_ptr<double>()});
}

void adamw_step(const AdamwShard& shard, const AdamwSettings& settings) {
  const OpScope scope("millrace::adamw_step");
  const auto& gradient = shard.gradient;
  run(gradient, Adamw{.gradient = gradient_of(gradient),
                      .n = gradient.numel(),
                      .weights = master_of(shard.weights, "weights", gradient),
                      .exp_avg = master_of(shard.exp_avg, "exp_avg", gradient),
                      .exp_avg_sq = master_of(shard.exp_avg_sq, "exp_avg_sq", gradient),
                      .ema = shard.ema.defined() ? master_of(shard.ema, "ema", gradient) : nullptr,
                      .published = published_of(shard.published, gradient),
                      .step = make_adamw_step(settings)});
}

}  // namespace millrace::kernels
