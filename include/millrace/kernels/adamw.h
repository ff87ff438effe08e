#pragma once
#include <cstdint>

#include "millrace/kernels/element.h"

// AdamW over a flat shard in one pass (Loshchilov and Hutter, "Decoupled weight decay regularization"; the arithmetic
// of torch.optim.AdamW), with the EMA of the weights and their 16-bit copy. All pointers are to memory of the device
// that the function is for, except where a comment says otherwise. Nothing here waits for a GPU, so that a CUDA graph
// can hold it.
namespace millrace::kernels {

// The host's part of a step's numbers.
struct AdamwSettings {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  double ema_decay = 0;
  double max_norm = 0;         // gradients are clipped to this norm; 0: never
  double gradient_factor = 1;  // gradients are multiplied by this first
};

// The device's part.
struct AdamwState {
  std::int64_t step = 0;  // updates done
  double norm = 0;        // of the gradients, before they are clipped
  int skip = 0;           // loss or norm are not finite: weights, moments and EMA stay, step does not count
  // Of this update.
  float gradient_factor, decay, beta1, beta2, one_minus_beta1, one_minus_beta2, step_size, inverse_root, eps,
      ema_weight;
};

// *sum = sum of squares of the gradient in double precision, in an order that depends on n alone. `partials`: memory of
// square_sum_partials doubles.
inline constexpr int square_sum_partials = 1024;
struct SquareSum {
  Values gradient;
  std::int64_t n;
  double* partials;
  double* sum;
};
void square_sum_cpu(const SquareSum& arguments);
void square_sum_cuda(const SquareSum& arguments, void* stream);

// Decides about a step and advances state->step: norm from the `sums` square sums in order, skip, the clip factor
// min(1, max_norm / (norm + 1e-6)), bias corrections in double precision.
struct PrepareAdamw {
  const AdamwSettings* settings;
  const float* loss;         // or null
  const double* square_sum;  // `sums` of them, one per flat shard
  int sums;
  AdamwState* state;
};
void prepare_adamw_cpu(const PrepareAdamw& arguments);
void prepare_adamw_cuda(const PrepareAdamw& arguments, void* stream);

// The update, with the numbers of *state.
struct Adamw {
  Values gradient;  // f32 or bf16
  std::int64_t n;
  float *weights, *exp_avg, *exp_avg_sq;
  float* ema;        // or null
  Target published;  // a copy of the updated weights; data null: none
  const AdamwState* state;
};
void adamw_cpu(const Adamw& arguments);
void adamw_cuda(const Adamw& arguments, void* stream);

}  // namespace millrace::kernels
