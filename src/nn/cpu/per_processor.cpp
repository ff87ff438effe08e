#include "cpu/per_processor.h"

#include <ATen/Version.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

namespace millrace::nn {

namespace {

#define MILLRACE_KERNELS                                                                              \
  {                                                                                                   \
    simd_width, {forward, backward}, {find_moments, normalize, add_gradient_sums, finish_gradient}, { \
      geglu, geglu_backward                                                                           \
    }                                                                                                 \
  }

namespace portable {
constexpr int simd_width = 4;
#define MILLRACE_TARGET
#include "cpu/simd.h"
//
#include "cpu/attention_small_head.h"
#include "cpu/geglu_rows.h"
#include "cpu/group_norm_strip.h"
#undef MILLRACE_TARGET
constexpr CpuKernels kernels MILLRACE_KERNELS;
}  // namespace portable

#if defined(__x86_64__)
namespace avx2 {
constexpr int simd_width = 8;
#define MILLRACE_TARGET __attribute__((target("avx2,fma")))
#include "cpu/simd.h"
//
#include "cpu/attention_small_head.h"
#include "cpu/geglu_rows.h"
#include "cpu/group_norm_strip.h"
#undef MILLRACE_TARGET
constexpr CpuKernels kernels MILLRACE_KERNELS;
}  // namespace avx2

namespace avx512 {
constexpr int simd_width = 16;
#define MILLRACE_TARGET __attribute__((target("avx512f,avx2,fma")))
#include "cpu/simd.h"
//
#include "cpu/attention_small_head.h"
#include "cpu/geglu_rows.h"
#include "cpu/group_norm_strip.h"
#undef MILLRACE_TARGET
constexpr CpuKernels kernels MILLRACE_KERNELS;
}  // namespace avx512
#endif

}  // namespace

const CpuKernels& portable_kernels() {
  return portable::kernels;
}

const CpuKernels& best_kernels(std::int64_t size) {
#if defined(__x86_64__)
  static const std::string libtorchs = at::get_cpu_capability();  // "AVX512", "AVX2" or another
  static const bool has_avx2 =
      (libtorchs == "AVX2" || libtorchs == "AVX512") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const bool has_avx512 = has_avx2 && libtorchs == "AVX512" && __builtin_cpu_supports("avx512f");
  if (has_avx512 && size % avx512::simd_width == 0) return avx512::kernels;
  if (has_avx2) return avx2::kernels;
#endif
  return portable::kernels;
}

}  // namespace millrace::nn
