// GEGLU of rows. Without an include guard: per_processor.cpp includes this text once for each kind of processor.

// Of the standard normal distribution at x: the probability of less, to 7.5e-8 (Abramowitz and Stegun, 26.2.17), and
// the density.
struct Normal {
  Floats below, density;
};
MILLRACE_INLINE Normal normal_at(Floats x) {
  const Floats density = 0.398942280f * exp_of_negative(-0.5f * x * x);
  const Floats t = 1.0f / (1.0f - 0.2316419f * negative_magnitude(x));
  Floats series = t * 1.330274429f - 1.821255978f;
  series = series * t + 1.781477937f;
  series = series * t - 0.356563782f;
  series = series * t + 0.319381530f;
  const Floats tail = series * t * density;
  return {x < 0.0f ? tail : 1.0f - tail, density};
}

// x (rows, [value | gate]) -> y (rows, C).
MILLRACE_TARGET void geglu(const GegluRows& shape, const float* x, float* y) {
  const auto [rows, channels] = shape;
  for (std::int64_t i = 0; i < rows; ++i, x += 2 * channels, y += channels) {
    for (std::int64_t c = 0; c < channels; c += simd_width) {
      const Floats gate = load(x + channels + c);
      store(load(x + c) * gate * normal_at(gate).below, y + c);
    }
  }
}

MILLRACE_TARGET void geglu_backward(const GegluRows& shape, const float* x, const float* y_grad, float* x_grad) {
  const auto [rows, channels] = shape;
  for (std::int64_t i = 0; i < rows; ++i, x += 2 * channels, y_grad += channels, x_grad += 2 * channels) {
    for (std::int64_t c = 0; c < channels; c += simd_width) {
      const Floats gate = load(x + channels + c), grad = load(y_grad + c);
      const auto [below, density] = normal_at(gate);
      store(grad * gate * below, x_grad + c);
      store(grad * load(x + c) * (below + gate * density), x_grad + channels + c);
    }
  }
}
