#include "millrace/nn/attention.h"

#include <fmt/ranges.h>

#include <array>
#include <atomic>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <vector>

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

bool suits_small_attention(torch::DeviceType device, torch::Dtype dtype, const HeadShape& head) {
  return device == torch::kCPU && dtype == torch::kFloat32 && head.dim % 8 == 0 &&
         head.queries * head.keys * head.dim <= max_products_of_small;
}

bool suits_small_attention(const torch::Tensor& q, const torch::Tensor& k, std::int64_t heads) {
  return q.numel() > 0 && k.numel() > 0 &&
         suits_small_attention(q.device().type(), q.scalar_type(), {q.size(1), k.size(1), q.size(2) / heads});
}

// (B, T, heads * d) -> (B, heads, T, d), a view.
torch::Tensor split_heads(const torch::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

// (B, heads, T, d) -> (B, T, heads * d).
torch::Tensor merge_heads(const torch::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0), x.size(2), x.size(1) * x.size(3)});
}

// Bits of the kernels that were taken: LibTorch's by their numbers in sdp::SDPBackend, then our own.
constexpr const char* kernel_names[] = {"LibTorch math",  "LibTorch flash",        "LibTorch memory-efficient",
                                        "LibTorch cuDNN", "LibTorch overrideable", "small images by our own"};
constexpr std::size_t own_kernel = std::size(kernel_names) - 1;
std::atomic<unsigned> taken_kernels = 0;

void note_own_kernel() {
  taken_kernels |= 1u << own_kernel;
}

// Asks LibTorch once for all attentions that are alike: a network has few of them, and calls each again and again.
void note_kernel(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v) {
  using Case = std::array<std::int64_t, 8>;
  static std::mutex mutex;
  static std::set<Case> asked;
  const Case now{static_cast<std::int64_t>(q.device().type()),
                 static_cast<std::int64_t>(q.scalar_type()),
                 torch::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad()),
                 q.size(0),
                 q.size(1),
                 q.size(2),
                 q.size(3),
                 k.size(2)};
  const std::lock_guard lock(mutex);
  if (!asked.insert(now).second) return;
  const auto kernel = at::_fused_sdp_choice(q, k, v);
  if (kernel >= 0 && static_cast<std::size_t>(kernel) < own_kernel) taken_kernels |= 1u << kernel;
}

}  // namespace

torch::Tensor attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, std::int64_t heads,
                        bool causal) {
  TORCH_CHECK(heads > 0 && q.size(2) % heads == 0, "heads is ", heads, ", which does not divide ", q.size(2),
              " channels");
  if (!causal && suits_small_attention(q, k, heads)) {
    note_own_kernel();
    return small_attention(q, k, v, heads);
  }
  const auto queries = split_heads(q, heads), keys = split_heads(k, heads), values = split_heads(v, heads);
  if (!causal) note_kernel(queries, keys, values);  // causal ones are a text encoder's
  return merge_heads(at::scaled_dot_product_attention(queries, keys, values, {}, 0.0, causal));
}

std::int64_t attention_floats_kept(torch::DeviceType device, torch::Dtype dtype, std::int64_t queries,
                                   std::int64_t keys, std::int64_t head_dim) {
  const HeadShape head{queries, keys, head_dim};
  return suits_small_attention(device, dtype, head) ? head.probabilities() : queries;
}

std::string attention_kernels() {
  std::vector<std::string> names;
  for (std::size_t kernel = 0; kernel < std::size(kernel_names); ++kernel)
    if (taken_kernels >> kernel & 1) names.emplace_back(kernel_names[kernel]);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace millrace::nn
