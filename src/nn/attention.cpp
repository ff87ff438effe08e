#include "millrace/nn/attention.h"

#include <cmath>

namespace millrace::nn {

namespace {

// NOTE [Attention on the CPU]: LibTorch's fused kernel works through blocks of rows; where all scores fit the caches
// anyway, two batched matrix products around a softmax are faster. Forward + backward against the fused kernel, up to a
// million scores: 0.6 to 0.8 of its time with two threads and head dims up to 16, equal with one thread or head dim 64.
// From two million scores on equal, then slower: 1.7 times at sixteen million.
constexpr std::int64_t most_scores_in_cache = 1 << 20;

// (B, T, heads * d) -> (B, heads, T, d), a view.
torch::Tensor split_heads(const torch::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

// (B, heads, T, d) -> (B, T, heads * d).
torch::Tensor merge_heads(const torch::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0), x.size(2), x.size(1) * x.size(3)});
}

bool scores_fit_cache(const torch::Tensor& q, const torch::Tensor& k, std::int64_t heads) {
  return q.is_cpu() && q.scalar_type() == torch::kFloat32 &&
         q.size(0) * heads * q.size(1) * k.size(1) <= most_scores_in_cache;
}

// q (B, heads, T, d), k and v (B, heads, S, d) -> (B, heads, T, d).
torch::Tensor explicit_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const auto flat_q = q.flatten(0, 1), flat_k = k.flatten(0, 1), flat_v = v.flatten(0, 1);
  const auto scores = at::baddbmm(at::empty({1, 1, 1}, q.options()), flat_q, flat_k.transpose(1, 2), 0, scale);
  return at::bmm(at::softmax(scores, -1), flat_v).view_as(q);
}

}  // namespace

torch::Tensor attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, std::int64_t heads,
                        bool causal) {
  const auto by_head_q = split_heads(q, heads), by_head_k = split_heads(k, heads), by_head_v = split_heads(v, heads);
  const bool small = !causal && scores_fit_cache(q, k, heads);
  return merge_heads(small ? explicit_attention(by_head_q, by_head_k, by_head_v)
                           : at::scaled_dot_product_attention(by_head_q, by_head_k, by_head_v, {}, 0.0, causal));
}

}  // namespace millrace::nn
