// Group norm of a strip of pixels. Without an include guard: per_processor.cpp includes this text once for each kind of
// processor.

// Adds `pixels` of them to moments (3, C).
template <int pixels>
MILLRACE_INLINE void add_moments_of(std::int64_t channels, const float* x, float* moments) {
  float *const sums = moments + channels, *const squares = sums + channels;
  for (std::int64_t c = 0; c < channels; c += simd_width) {
    const Floats origin = load(moments + c);
    Floats sum = load(sums + c), square = load(squares + c);
    for (int i = 0; i < pixels; ++i) {
      const Floats deviation = load(x + i * channels + c) - origin;
      sum += deviation;
      square += deviation * deviation;
    }
    store(sum, sums + c);
    store(square, squares + c);
  }
}

// -> moments (3, C): an origin, and the sums of x - origin and of its square. The origin is the mean of the first
// pixels: the closer to that of all, the fewer digits of the square are taken away again. An outlier among n pixels
// that were the origin would make the square n times what is left of it, one of eight makes it n / 64 times.
MILLRACE_TARGET void find_moments(const PixelStrip& strip, const float* x, float* moments) {
  const auto [pixels, channels] = strip;
  constexpr std::int64_t origin_pixels = 8, together = 4;
  const std::int64_t first = pixels < origin_pixels ? pixels : origin_pixels;
  const float inverse = 1.0f / static_cast<float>(first);
  for (std::int64_t c = 0; c < channels; c += simd_width) {
    Floats sum = {};
    for (std::int64_t i = 0; i < first; ++i) sum += load(x + i * channels + c);
    store(sum * inverse, moments + c);
  }
  std::memset(moments + channels, 0, 2 * channels * sizeof(float));
  std::int64_t i = 0;
  for (; i + together <= pixels; i += together) add_moments_of<together>(channels, x + i * channels, moments);
  for (; i < pixels; ++i) add_moments_of<1>(channels, x + i * channels, moments);
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
