// Group norm of a strip of pixels. Without an include guard: per_processor.cpp includes this text once for each kind of
// processor.

// Adds to sums (2, C): of x - origin, and of its square.
MILLRACE_TARGET void add_moments(const PixelStrip& strip, const float* x, const float* origin, float* sums) {
  const auto [pixels, channels] = strip;
  float* const squares = sums + channels;
  for (std::int64_t i = 0; i < pixels; ++i, x += channels) {
    for (std::int64_t c = 0; c < channels; c += simd_width) {
      const Floats deviation = load(x + c) - load(origin + c);
      store(load(sums + c) + deviation, sums + c);
      store(load(squares + c) + deviation * deviation, squares + c);
    }
  }
}

MILLRACE_TARGET void normalize(const PixelStrip& strip, const float* x, const ChannelNorm& norm, bool with_silu,
                               float* y) {
  const auto [pixels, channels] = strip;
  for (std::int64_t i = 0; i < pixels; ++i, x += channels, y += channels) {
    for (std::int64_t c = 0; c < channels; c += simd_width) {
      const Floats v = (load(x + c) - load(norm.shift + c)) * load(norm.scale + c) + load(norm.beta + c);
      store(with_silu ? v * sigmoid(v) : v, y + c);
    }
  }
}

// The gradient of v, and added to sums (3, C): of that, of that times x - shift, and of x - shift.
MILLRACE_TARGET void add_gradient_sums(const PixelStrip& strip, const float* x, const float* y_grad,
                                       const ChannelNorm& norm, bool with_silu, float* v_grad, float* sums) {
  const auto [pixels, channels] = strip;
  float *const products = sums + channels, *const deviations = products + channels;
  for (std::int64_t i = 0; i < pixels; ++i, x += channels, y_grad += channels, v_grad += channels) {
    for (std::int64_t c = 0; c < channels; c += simd_width) {
      const Floats deviation = load(x + c) - load(norm.shift + c);
      Floats grad = load(y_grad + c);
      if (with_silu) {
        const Floats v = deviation * load(norm.scale + c) + load(norm.beta + c), s = sigmoid(v);
        grad *= s * (1.0f + v * (1.0f - s));
      }
      store(grad, v_grad + c);
      store(load(sums + c) + grad, sums + c);
      store(load(products + c) + grad * deviation, products + c);
      store(load(deviations + c) + deviation, deviations + c);
    }
  }
}

// From the gradient of v to that of x, in place: grad scale + (x - shift) x_factor + offset.
MILLRACE_TARGET void finish_gradient(const PixelStrip& strip, const float* x, const ChannelNorm& norm,
                                     const float* x_factor, const float* offset, float* grad) {
  const auto [pixels, channels] = strip;
  for (std::int64_t i = 0; i < pixels; ++i, x += channels, grad += channels) {
    for (std::int64_t c = 0; c < channels; c += simd_width) {
      const Floats deviation = load(x + c) - load(norm.shift + c);
      store(load(grad + c) * load(norm.scale + c) + deviation * load(x_factor + c) + load(offset + c), grad + c);
    }
  }
}
