#pragma once
#include <torch/types.h>

#include <cstdint>
#include <string>

namespace millrace::nn {

// softmax(q k^T / sqrt(d)) v per head: q (B, T, heads * d), k and v (B, S, heads * d) -> (B, T, heads * d). With
// `causal` a row sees only its own and earlier columns (Vaswani et al., "Attention is all you need").
torch::Tensor attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, std::int64_t heads,
                        bool causal = false);

// Floats of a head that it keeps for backward: the logarithm of each query's sum or, where the kernel for small images
// on CPUs does it, all probabilities.
std::int64_t attention_floats_kept(torch::DeviceType device, torch::Dtype dtype, std::int64_t queries,
                                   std::int64_t keys, std::int64_t head_dim);

// The kernels that have done it in this process so far, as "LibTorch flash, small images by our own". Empty: there was
// no attention. A text encoder's, which are causal, do not count.
std::string attention_kernels();

}  // namespace millrace::nn
