#pragma once
#include <cstdint>

#include "element.h"

// AdamW over a flat shard in one pass (Loshchilov and Hutter, "Decoupled weight decay regularization"; the arithmetic
// of torch.optim.AdamW), with the EMA of the weights and their 16-bit copy. All pointers are to memory of the device
// that the function is for.
namespace millrace::kernels {

// *sum = sum of squares of the gradient in double precision, in an order that depends on n alone. `partials`: memory of
// square_sum_partials doubles.
inline constexpr int square_sum_partials = 1024;
struct SquareSum {
  Values gradient;
  std::int64_t n;
  double* partials;
  double* sum;
};
void run_cpu(const SquareSum& arguments);
void run_cuda(const SquareSum& arguments, void* stream);

struct AdamwSettings;  // ops.h

// What they come to in one update, in the kernel's arithmetic.
struct AdamwStep {
  float gradient_factor, decay, beta1, beta2, one_minus_beta1, one_minus_beta2, step_size, inverse_root, eps,
      ema_weight;
};
// In double precision, rounded once.
AdamwStep make_adamw_step(const AdamwSettings& settings);

struct Adamw {
  Values gradient;  // f32 or bf16
  std::int64_t n;
  float *weights, *exp_avg, *exp_avg_sq;
  float* ema;        // or null
  Target published;  // a copy of the updated weights; data null: none
  AdamwStep step;
};
void run_cpu(const Adamw& arguments);
void run_cuda(const Adamw& arguments, void* stream);

}  // namespace millrace::kernels
