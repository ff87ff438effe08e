#include <cstring>

#include "millrace/kernels/adamw.h"
#include "millrace/kernels/op_scope.h"
#include "millrace/kernels/ops.h"
#include "tensor_arguments.h"

namespace millrace::kernels {

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
