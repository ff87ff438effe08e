#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/attention_small.h"

namespace millrace::nn {

namespace {

namespace portable {
constexpr int simd_width = 4;
#define MILLRACE_TARGET
#include "cpu/attention_small_head.h"
#undef MILLRACE_TARGET
}  // namespace portable

#if defined(__x86_64__)
namespace avx2 {
constexpr int simd_width = 8;
#define MILLRACE_TARGET __attribute__((target("avx2,fma")))
#include "cpu/attention_small_head.h"
#undef MILLRACE_TARGET
}  // namespace avx2
#endif

}  // namespace

const AttentionKernel& portable_attention_kernel() {
  static constexpr AttentionKernel kernel{portable::forward, portable::backward};
  return kernel;
}

const AttentionKernel& best_attention_kernel() {
#if defined(__x86_64__)
  static constexpr AttentionKernel kernel{avx2::forward, avx2::backward};
  static const bool available = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (available) return kernel;
#endif
  return portable_attention_kernel();
}

}  // namespace millrace::nn
