#pragma once
#include <torch/types.h>

#include <cstdint>

// Attention of images so small that the scores of a head fit the processor's caches, on the CPU.
namespace millrace::nn {

// Rows of floats that start `stride` floats apart.
template <class Float>
struct Rows {
  Float* data;
  std::int64_t stride;

  Rows from(std::int64_t row) const { return {data + row * stride, stride}; }
};
using ConstRows = Rows<const float>;
using MutableRows = Rows<float>;

// T queries, S keys and d numbers in each, for one head. The queries are taken in tiles, whose rows become the
// lanes of the processor's registers: whatever belongs to a tile lies as (..., tile), the places of missing rows
// included.
struct HeadShape {
  std::int64_t queries, keys, dim;

  std::int64_t tile() const { return queries > 8 ? 16 : 8; }
  std::int64_t tiles() const { return (queries + tile() - 1) / tile(); }
  std::int64_t probabilities() const { return tiles() * keys * tile(); }  // floats of (tiles, S, tile)
  std::int64_t scratch() const { return (keys + dim) * tile(); }          // floats that the functions below want
};

// Both passes of one head: q, out and their gradients (T, d), k, v and theirs (S, d). The registers' width divides d
// and the tile.
struct AttentionKernel {
  // Leaves the probabilities for `backward`.
  void (*forward)(const HeadShape& shape, ConstRows q, ConstRows k, ConstRows v, float* probabilities, float* scratch,
                  MutableRows out);
  void (*backward)(const HeadShape& shape, ConstRows q, ConstRows k, ConstRows v, const float* probabilities,
                   ConstRows out_grad, float* scratch, MutableRows q_grad, MutableRows k_grad, MutableRows v_grad);
};

// As `attention`, without a causal mask: q (B, T, heads * d), k and v (B, S, heads * d), f32 on the CPU, d a multiple
// of 8 -> (B, T, heads * d). Differentiable once.
torch::Tensor small_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                              std::int64_t heads);

}  // namespace millrace::nn
