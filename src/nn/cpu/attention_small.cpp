#include "cpu/attention_small.h"

#include <ATen/Parallel.h>
#include <torch/autograd.h>

#include <numeric>
#include <vector>

#include "cpu/per_processor.h"
#include "millrace/core/error.h"
#include "millrace/kernels/op_scope.h"

namespace millrace::nn {

namespace {

HeadShape shape_of_heads(const torch::Tensor& q, const torch::Tensor& k, std::int64_t heads) {
  return {q.size(1), k.size(1), q.size(2) / heads};
}

// The kernel reads slices of a wider tensor in place, but wants neighbouring channels beside each other.
torch::Tensor with_dense_rows(const torch::Tensor& x) {
  return x.stride(2) == 1 ? x : x.contiguous();
}

// Where in x (B, T, heads * d) the (T, d) of the i-th head of the whole batch starts.
std::int64_t head_offset(const torch::Tensor& x, std::int64_t i, std::int64_t heads) {
  return i / heads * x.stride(0) + i % heads * (x.size(2) / heads);
}

ConstRows head_of(const torch::Tensor& x, std::int64_t i, std::int64_t heads) {
  return {x.const_data_ptr<float>() + head_offset(x, i, heads), x.stride(1)};
}

MutableRows mutable_head_of(const torch::Tensor& x, std::int64_t i, std::int64_t heads) {
  return {x.mutable_data_ptr<float>() + head_offset(x, i, heads), x.stride(1)};
}

// Calls work(i, scratch) for every head of the batch, with so many floats of scratch. Each is computed by one thread
// alone, so the result does not depend on their number.
template <class Work>
void for_each_head(std::int64_t all_heads, const HeadShape& shape, std::int64_t scratch_floats, const Work& work) {
  const std::int64_t score_products = shape.queries * shape.keys * shape.dim;
  const std::int64_t heads_per_task = at::internal::GRAIN_SIZE / score_products + 1;
  at::parallel_for(0, all_heads, heads_per_task, [&](std::int64_t begin, std::int64_t end) {
    const auto scratch = at::empty({scratch_floats}, torch::kFloat32);
    for (std::int64_t i = begin; i < end; ++i) work(i, scratch.mutable_data_ptr<float>());
  });
}

const AttentionKernel& kernel_of(const HeadShape& shape) {
  return best_kernels(std::gcd(shape.tile(), shape.dim)).attention;
}

// q, k and v with dense rows; `kept` (B * heads, shape.probabilities()) for the probabilities that backward wants, or
// undefined: then each thread has room for those of one head.
torch::Tensor attend(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, std::int64_t heads,
                     const torch::Tensor& kept) {
  const HeadShape shape = shape_of_heads(q, k, heads);
  float* const all = kept.defined() ? kept.mutable_data_ptr<float>() : nullptr;
  const auto out = at::empty(q.sizes(), q.options());
  const std::int64_t scratch_floats = shape.scratch() + (all ? 0 : shape.probabilities());
  for_each_head(q.size(0) * heads, shape, scratch_floats, [&](std::int64_t i, float* scratch) {
    float* const probabilities = all ? all + i * shape.probabilities() : scratch + shape.scratch();
    kernel_of(shape).forward(shape, head_of(q, i, heads), head_of(k, i, heads), head_of(v, i, heads), probabilities,
                             scratch, mutable_head_of(out, i, heads));
  });
  return out;
}

struct SmallAttention : torch::autograd::Function<SmallAttention> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& any_q,
                               const torch::Tensor& any_k, const torch::Tensor& any_v, std::int64_t heads) {
    const kernels::OpScope scope("millrace::small_attention");
    const auto q = with_dense_rows(any_q), k = with_dense_rows(any_k), v = with_dense_rows(any_v);
    const auto probabilities = at::empty({q.size(0) * heads, shape_of_heads(q, k, heads).probabilities()}, q.options());
    auto out = attend(q, k, v, heads, probabilities);
    context->save_for_backward({q, k, v, probabilities});
    context->saved_data["heads"] = heads;
    return out;
  }

  static std::vector<torch::Tensor> backward(torch::autograd::AutogradContext* context,
                                             std::vector<torch::Tensor> output_grads) {
    const kernels::OpScope scope("millrace::small_attention_backward");
    ensure(!at::GradMode::is_enabled(), "attention of small images has no second derivative");
    const auto saved = context->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &probabilities = saved[3];
    const std::int64_t heads = context->saved_data["heads"].toInt();
    const HeadShape shape = shape_of_heads(q, k, heads);
    const auto out_grad = with_dense_rows(output_grads[0]);
    const auto q_grad = at::empty(q.sizes(), q.options());
    const auto k_grad = at::empty(k.sizes(), k.options()), v_grad = at::empty(v.sizes(), v.options());
    for_each_head(q.size(0) * heads, shape, shape.scratch(), [&](std::int64_t i, float* scratch) {
      kernel_of(shape).backward(shape, head_of(q, i, heads), head_of(k, i, heads), head_of(v, i, heads),
                                probabilities.const_data_ptr<float>() + i * shape.probabilities(),
                                head_of(out_grad, i, heads), scratch, mutable_head_of(q_grad, i, heads),
                                mutable_head_of(k_grad, i, heads), mutable_head_of(v_grad, i, heads));
    });
    return {q_grad, k_grad, v_grad, {}};
  }
};

}  // namespace

torch::Tensor small_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                              std::int64_t heads) {
  TORCH_CHECK(k.sizes() == v.sizes() && q.size(0) == k.size(0) && q.size(2) == k.size(2), "attention of ", q.sizes(),
              " to ", k.sizes(), " and ", v.sizes());  // as of LibTorch's own
  ensure(q.size(2) % (8 * heads) == 0, "channels of a head are a multiple of 8");
  const bool has_backward =
      torch::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  if (has_backward) return SmallAttention::apply(q, k, v, heads);
  const kernels::OpScope scope("millrace::small_attention");
  return attend(with_dense_rows(q), with_dense_rows(k), with_dense_rows(v), heads, {});
}

}  // namespace millrace::nn
