#include "millrace/nn/attention.h"

#include "cpu/attention_small.h"

namespace millrace::nn {

namespace {

// NOTE [Attention on the CPU]: LibTorch's fused attention is made for many tokens. Around few, its copies between
// (B, T, heads, d) and (B, heads, T, d) and its small matrix products cost more than the arithmetic. Forward + backward
// with the kernel in cpu/attention_small.h take, of LibTorch's time on one thread, with 77 or as many keys as queries:
// 0.5 to 0.6 at d = 16 and 16 or 64 queries, 0.7 at d = 40 or 64 and 64 queries, 0.7 to 0.8 at d = 64 and 256 queries
// with 77 keys. What decides is the number of products in q k^T of one head, T S d: around the limit here the kernel
// takes 0.7 to 0.9, at twenty times as many 1.3, because it keeps the probabilities for backward and LibTorch does not.
constexpr std::int64_t max_products_of_small = 1 << 21;

bool suits_small_attention(const torch::Tensor& q, const torch::Tensor& k, std::int64_t heads) {
  const std::int64_t head_dim = q.size(2) / heads;
  return q.is_cpu() && q.scalar_type() == torch::kFloat32 && q.numel() > 0 && k.numel() > 0 && head_dim % 8 == 0 &&
         q.size(1) * k.size(1) * head_dim <= max_products_of_small;
}

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
  if (!causal && suits_small_attention(q, k, heads)) return small_attention(q, k, v, heads);
  return merge_heads(at::scaled_dot_product_attention(split_heads(q, heads), split_heads(k, heads),
                                                      split_heads(v, heads), {}, 0.0, causal));
}

}  // namespace millrace::nn
