#include "cpu/geglu.h"

#include <ATen/Parallel.h>
#include <torch/autograd.h>

#include <vector>

#include "cpu/per_processor.h"
#include "millrace/core/error.h"
#include "millrace/kernels/op_scope.h"
#include "millrace/nn/fused.h"

namespace millrace::nn {

namespace {

// Calls work(rows, first) for runs of rows, each by one thread.
template <class Work>
void for_runs_of_rows(const GegluRows& shape, const Work& work) {
  const std::int64_t rows_per_task = at::internal::GRAIN_SIZE / shape.channels + 1;
  at::parallel_for(0, shape.rows, rows_per_task, [&](std::int64_t begin, std::int64_t end) {
    work(GegluRows{end - begin, shape.channels}, begin);
  });
}

struct GegluInOnePass : torch::autograd::Function<GegluInOnePass> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x) {
    const kernels::OpScope scope("millrace::geglu");
    auto sizes = x.sizes().vec();
    sizes.back() /= 2;
    const auto y = at::empty(sizes, x.options());
    const GegluRows shape{y.numel() / sizes.back(), sizes.back()};
    const auto* in = x.const_data_ptr<float>();
    auto* const out = y.mutable_data_ptr<float>();
    for_runs_of_rows(shape, [&](const GegluRows& run, std::int64_t first) {
      best_kernels(shape.channels).geglu.forward(run, in + first * 2 * shape.channels, out + first * shape.channels);
    });
    context->save_for_backward({x});
    return y;
  }

  static std::vector<torch::Tensor> backward(torch::autograd::AutogradContext* context,
                                             std::vector<torch::Tensor> output_grads) {
    const kernels::OpScope scope("millrace::geglu_backward");
    ensure(!at::GradMode::is_enabled(), "GEGLU in one pass has no second derivative");
    const auto x = context->get_saved_variables()[0], y_grad = output_grads[0].contiguous();
    const auto x_grad = at::empty_like(x);
    const std::int64_t channels = y_grad.size(-1);
    for_runs_of_rows({y_grad.numel() / channels, channels}, [&](const GegluRows& run, std::int64_t first) {
      best_kernels(channels).geglu.backward(run, x.const_data_ptr<float>() + first * 2 * channels,
                                            y_grad.const_data_ptr<float>() + first * channels,
                                            x_grad.mutable_data_ptr<float>() + first * 2 * channels);
    });
    return {x_grad};
  }
};

}  // namespace

bool suits_geglu_kernel(const torch::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == torch::kFloat32 && x.is_contiguous() && x.numel() > 0 &&
         x.size(-1) % 2 == 0 && own_kernels_take(torch::kCPU, x.size(-1) / 2);
}

torch::Tensor geglu_in_one_pass(const torch::Tensor& x) {
  return GegluInOnePass::apply(x);
}

}  // namespace millrace::nn
