#include "millrace/kernels/ops.h"

#include <torch/autograd.h>

#include <cstring>
#include <optional>
#include <vector>

#include "geglu.h"
#include "gradient.h"
#include "group_norm_silu.h"
#include "layer_norm.h"
#include "millrace/kernels/op_scope.h"
#include "normals.h"
#include "tensor_arguments.h"

namespace millrace::kernels {

namespace {

using torch::autograd::AutogradContext;

// Group norm -------------------------------------------------------------------------------------------------------

constexpr auto channels_last = torch::MemoryFormat::ChannelsLast;

GroupNormShape group_norm_shape(const Tensor& x, std::int64_t groups) {
  TORCH_CHECK(x.dim() == 4 && x.numel() > 0, "x has shape ", x.sizes(), ", not (B, C, h, w)");
  TORCH_CHECK(x.is_contiguous(channels_last), "x is not channels-last: strides ", x.strides());
  TORCH_CHECK(groups > 0 && x.size(1) % groups == 0, "groups is ", groups, ", which does not divide ", x.size(1),
              " channels");
  TORCH_CHECK(x.size(0) <= 65535 && groups <= 65535, "x has more than 65535 images, or there are as many groups");
  return {x.size(0), x.size(2) * x.size(3), static_cast<int>(x.size(1)), static_cast<int>(groups)};
}

Shift shift_of(const Tensor& time, const Tensor& x_bias, const GroupNormShape& shape, const Tensor& x) {
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
    run(x, group_norm_silu_cpu, group_norm_silu_cuda,
        {.shape = shape,
         .element = element_of(x, "x"),
         .with_silu = with_silu,
         .eps = static_cast<float>(eps),
         .x = x.const_data_ptr(),
         .shift = shift_of(time, x_bias, shape, x),
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
    run(x, group_norm_silu_backward_cpu, group_norm_silu_backward_cuda,
        {.shape = shape,
         .element = element_of(x, "x"),
         .with_silu = context->saved_data["with_silu"].toBool(),
         .x = x.const_data_ptr(),
         .y_grad = y_grad.const_data_ptr(),
         .x_grad_of_rest = rest.defined() ? rest.const_data_ptr() : nullptr,
         .shift = shift_of(time, x_bias, shape, x),
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

// GEGLU ------------------------------------------------------------------------------------------------------------

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
    run(x, geglu_cpu, geglu_cuda,
        {.rows = y.numel() / channels,
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
    run(x, geglu_backward_cpu, geglu_backward_cuda,
        {.rows = rows,
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

// Layer norm -------------------------------------------------------------------------------------------------------

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
    run(x, layer_norm_cpu, layer_norm_cuda,
        {.rows = rows,
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
    run(s, layer_norm_backward_cpu, layer_norm_backward_cuda,
        {.rows = rows,
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

std::pair<Tensor, Tensor> pair_of(std::vector<Tensor> two) {
  return {std::move(two[0]), std::move(two[1])};
}

}  // namespace

std::pair<Tensor, Tensor> group_norm_silu_beside(const Tensor& x, const Tensor& time, const Tensor& x_bias,
                                                 const Tensor& weight, const Tensor& bias, std::int64_t groups,
                                                 double eps, bool with_silu) {
  check_defined(weight, "weight");
  check_defined(bias, "bias");
  return pair_of(
      GroupNormSiluFunction::apply(x, if_defined(time), if_defined(x_bias), weight, bias, groups, eps, with_silu));
}

Tensor geglu(const Tensor& x, const Tensor& bias) {
  return GegluFunction::apply(x, if_defined(bias));
}

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

// AdamW ------------------------------------------------------------------------------------------------------------

namespace {

template <class Struct>
Tensor to_bytes(const Struct& value, torch::Device device) {
  const auto bytes = at::empty({sizeof(Struct)}, torch::dtype(torch::kByte).pinned_memory(device.is_cuda()));
  std::memcpy(bytes.mutable_data_ptr(), &value, sizeof(Struct));
  return bytes.to(device, /*non_blocking=*/true);
}

template <class Struct>
void check_bytes(const Tensor& tensor, const char* name, const Tensor& x) {
  TORCH_CHECK(tensor.dtype() == torch::kByte, name, " is not a tensor of bytes");
  check_shape(tensor, name, {static_cast<std::int64_t>(sizeof(Struct))});
  check_device(tensor, name, x);
}

void check_numbers(const Tensor& tensor, const char* name, torch::Dtype type, const Tensor& x) {
  TORCH_CHECK(tensor.scalar_type() == type, name, " has type ", tensor.scalar_type(), ", not ", type);
  check_contiguous(tensor, name);
  check_device(tensor, name, x);
}

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

Tensor make_adamw_settings(const AdamwSettings& settings, torch::Device device) {
  return to_bytes(settings, device);
}

Tensor make_adamw_state(std::int64_t step, torch::Device device) {
  AdamwState state{};
  state.step = step;
  return to_bytes(state, device);
}

AdamwState read_adamw_state(const Tensor& state) {
  check_bytes<AdamwState>(state, "state", state);
  const auto host = state.cpu();
  AdamwState value;
  std::memcpy(static_cast<void*>(&value), host.const_data_ptr(), sizeof value);
  return value;
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
  run(words, normals_cpu, normals_cuda,
      {.rows = words.size(0),
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
  run(sum, sum_gradient_cpu, sum_gradient_cuda,
      {.n = sum.numel(),
       .gradient = {gradient.const_data_ptr(), element_of(gradient, "gradient")},
       .sum = sum.mutable_data_ptr<float>(),
       .replaces = replaces});
}

void square_sum(const Tensor& gradient, const Tensor& sum) {
  const OpScope scope("millrace::square_sum");
  TORCH_CHECK(sum.numel() == 1, "sum has ", sum.numel(), " elements, not one");
  check_numbers(sum, "sum", torch::kFloat64, gradient);
  const auto partials = at::empty({square_sum_partials}, sum.options());
  run(gradient, square_sum_cpu, square_sum_cuda,
      {.gradient = gradient_of(gradient),
       .n = gradient.numel(),
       .partials = partials.mutable_data_ptr<double>(),
       .sum = sum.mutable_data_ptr<double>()});
}

void prepare_adamw(const Tensor& settings, const Tensor& square_sums, const Tensor& loss, const Tensor& state) {
  const OpScope scope("millrace::prepare_adamw");
  check_bytes<AdamwSettings>(settings, "settings", state);
  check_bytes<AdamwState>(state, "state", state);
  check_numbers(square_sums, "square_sums", torch::kFloat64, state);
  if (loss.defined()) {
    check_numbers(loss, "loss", torch::kFloat32, state);
    TORCH_CHECK(loss.numel() == 1, "loss has ", loss.numel(), " elements, not one");
  }
  run(state, prepare_adamw_cpu, prepare_adamw_cuda,
      {.settings = static_cast<const AdamwSettings*>(settings.const_data_ptr()),
       .loss = loss.defined() ? loss.const_data_ptr<float>() : nullptr,
       .square_sum = square_sums.const_data_ptr<double>(),
       .sums = static_cast<int>(square_sums.numel()),
       .state = static_cast<AdamwState*>(state.mutable_data_ptr())});
}

void adamw_step(const AdamwShard& shard, const Tensor& state) {
  const OpScope scope("millrace::adamw_step");
  const auto& gradient = shard.gradient;
  check_bytes<AdamwState>(state, "state", gradient);
  run(gradient, adamw_cpu, adamw_cuda,
      {.gradient = gradient_of(gradient),
       .n = gradient.numel(),
       .weights = master_of(shard.weights, "weights", gradient),
       .exp_avg = master_of(shard.exp_avg, "exp_avg", gradient),
       .exp_avg_sq = master_of(shard.exp_avg_sq, "exp_avg_sq", gradient),
       .ema = shard.ema.defined() ? master_of(shard.ema, "ema", gradient) : nullptr,
       .published = published_of(shard.published, gradient),
       .state = static_cast<const AdamwState*>(state.const_data_ptr())});
}

}  // namespace millrace::kernels
