#include "millrace/nn/attention.h"

namespace millrace::nn {

namespace {

// (B, T, heads * d) -> (B, heads, T, d), a view.
torch::Tensor split_heads(const torch::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

// (B, heads, T, d) -> (B, T, heads * d).
torch::Tensor merge_heads(const torch::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0), x.size(2), x.size(1) * x.size(3)});
}

}  // namespace

torch::Tensor attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, std::int64_t heads,
                        bool causal) {
  return merge_heads(at::scaled_dot_product_attention(split_heads(q, heads), split_heads(k, heads),
                                                      split_heads(v, heads), {}, 0.0, causal));
}

}  // namespace millrace::nn
