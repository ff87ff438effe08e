// Attention of one head. Without an include guard: per_processor.cpp includes this text once for each kind of
// processor.

// A matrix in any order: element (i, j) at data[i * row_stride + j * column_stride].
struct Left {
  const float* data;
  std::int64_t row_stride, column_stride;
};

// A block of c = a b (or c += a b): the sums stay in registers.
template <int height, int width>
MILLRACE_INLINE void product_block(Left a, std::int64_t depth, ConstRows b, MutableRows c, bool add) {
  Floats sums[height][width] = {};
  if (add) {
    for (int i = 0; i < height; ++i) {
      for (int j = 0; j < width; ++j) sums[i][j] = load(c.data + i * c.stride + j * simd_width);
    }
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    Floats right[width];
    for (int j = 0; j < width; ++j) right[j] = load(b.data + k * b.stride + j * simd_width);
    for (int i = 0; i < height; ++i) {
      const float left = a.data[i * a.row_stride + k * a.column_stride];
      for (int j = 0; j < width; ++j) sums[i][j] += left * right[j];
    }
  }
  for (int i = 0; i < height; ++i) {
    for (int j = 0; j < width; ++j) store(sums[i][j], c.data + i * c.stride + j * simd_width);
  }
}

template <int width>
MILLRACE_TARGET void product_columns(Left a, std::int64_t rows, std::int64_t depth, ConstRows b, MutableRows c,
                                     bool add) {
  constexpr int height = 4;
  std::int64_t i = 0;
  for (; i + height <= rows; i += height) {
    product_block<height, width>({a.data + i * a.row_stride, a.row_stride, a.column_stride}, depth, b, c.from(i), add);
  }
  for (; i < rows; ++i)
    product_block<1, width>({a.data + i * a.row_stride, 0, a.column_stride}, depth, b, c.from(i), add);
}

// c (rows, columns) = a (rows, depth) b (depth, columns), or c += a b. Columns: a multiple of the registers' width.
MILLRACE_TARGET void product(Left a, std::int64_t rows, std::int64_t depth, ConstRows b, std::int64_t columns,
                             MutableRows c, bool add = false) {
  std::int64_t j = 0;
  for (; j + 2 * simd_width <= columns; j += 2 * simd_width) {
    product_columns<2>(a, rows, depth, {b.data + j, b.stride}, {c.data + j, c.stride}, add);
  }
  for (; j < columns; j += simd_width) {
    product_columns<1>(a, rows, depth, {b.data + j, b.stride}, {c.data + j, c.stride}, add);
  }
}

// x (rows, dim) -> out (dim, tile), zero where there is no row.
MILLRACE_TARGET void transpose(ConstRows x, std::int64_t rows, std::int64_t dim, std::int64_t tile, float* out) {
  if (rows < tile) std::memset(out, 0, dim * tile * sizeof(float));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < dim; ++j) out[j * tile + i] = x.data[i * x.stride + j];
  }
}

// scores (S, tile) -> softmax(scale * scores) over S, in place.
MILLRACE_TARGET void softmax(float* scores, std::int64_t keys, std::int64_t tile, float scale) {
  for (float* first = scores; first < scores + tile; first += simd_width) {
    float* const end = first + keys * tile;
    Floats most = load(first);
    for (const float* x = first + tile; x < end; x += tile) {
      const Floats score = load(x);
      most = most < score ? score : most;
    }
    Floats sum = {};
    for (float* x = first; x < end; x += tile) {
      const Floats weight = exp_of_negative((load(x) - most) * scale);
      sum += weight;
      store(weight, x);
    }
    const Floats inverse = 1.0f / sum;
    for (float* x = first; x < end; x += tile) store(load(x) * inverse, x);
  }
}

// Gradient of the probabilities (S, tile) -> of the scores, in place: scale * p * (g - sum over S of p g).
MILLRACE_TARGET void softmax_backward(const float* probabilities, std::int64_t keys, std::int64_t tile, float scale,
                                      float* grad) {
  for (std::int64_t lane = 0; lane < tile; lane += simd_width) {
    Floats sum = {};
    for (std::int64_t i = lane; i < keys * tile; i += tile) sum += load(probabilities + i) * load(grad + i);
    for (std::int64_t i = lane; i < keys * tile; i += tile) {
      store(load(probabilities + i) * (load(grad + i) - sum) * scale, grad + i);
    }
  }
}

MILLRACE_TARGET void forward(const HeadShape& shape, ConstRows q, ConstRows k, ConstRows v, float* probabilities,
                             float* scratch, MutableRows out) {
  const auto [queries, keys, dim] = shape;
  const std::int64_t tile = shape.tile();
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  float* const q_by_dim = scratch;  // (d, tile)
  for (std::int64_t first = 0; first < queries; first += tile, probabilities += keys * tile) {
    const std::int64_t rows = std::min(tile, queries - first);
    transpose(q.from(first), rows, dim, tile, q_by_dim);
    product({k.data, k.stride, 1}, keys, dim, {q_by_dim, tile}, tile, {probabilities, tile});
    softmax(probabilities, keys, tile, scale);
    product({probabilities, 1, tile}, rows, keys, v, dim, out.from(first));
  }
}

MILLRACE_TARGET void backward(const HeadShape& shape, ConstRows q, ConstRows k, ConstRows v, const float* probabilities,
                              ConstRows out_grad, float* scratch, MutableRows q_grad, MutableRows k_grad,
                              MutableRows v_grad) {
  const auto [queries, keys, dim] = shape;
  const std::int64_t tile = shape.tile();
  const float scale = 1 / std::sqrt(static_cast<float>(dim));
  float* const out_grad_by_dim = scratch;          // (d, tile)
  float* const score_grad = scratch + dim * tile;  // (S, tile), first of the probabilities, then of the scores
  for (std::int64_t first = 0; first < queries; first += tile, probabilities += keys * tile) {
    const std::int64_t rows = std::min(tile, queries - first);
    transpose(out_grad.from(first), rows, dim, tile, out_grad_by_dim);
    product({v.data, v.stride, 1}, keys, dim, {out_grad_by_dim, tile}, tile, {score_grad, tile});
    softmax_backward(probabilities, keys, tile, scale, score_grad);
    product({score_grad, 1, tile}, rows, keys, k, dim, q_grad.from(first));
    product({score_grad, tile, 1}, keys, rows, q.from(first), dim, k_grad, first > 0);
    product({probabilities, tile, 1}, keys, rows, out_grad.from(first), dim, v_grad, first > 0);
  }
}
