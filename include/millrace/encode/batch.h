#pragma once
#include <torch/types.h>

#include <vector>

#include "millrace/dataset/sample.h"
#include "millrace/latents/encoding_shape.h"

namespace millrace {

// Consecutive encoded samples: what parcels, caches and trainers hold.
struct EncodedBatch {
  std::vector<SampleRef> refs;  // B
  torch::Tensor moments;        // f16 (B, 8, h, w): mean and log-variance of the posterior, not scaled
  // f16 (B, 77, C): text embeddings of the true caption; or its tokens, i32 (B, 77), where trainers have the text
  // encoder.
  torch::Tensor text;
};

// A batch as it leaves the encoders, where an overflow shows as infinity or NaN.
struct CheckedBatch {
  EncodedBatch batch;
  std::vector<bool> finite;  // per row: its moments and text are
};

// For each row, whether its moments and text are all finite. f16 holds no more than 65504: an overflow shows as
// infinity.
std::vector<bool> finite_rows(const EncodedBatch& batch);

// Rows `rows` of `batch`, in that order.
EncodedBatch select_rows(const EncodedBatch& batch, const std::vector<int>& rows);
// The rows of all, one batch after the other; there must be one.
EncodedBatch concatenate(std::vector<EncodedBatch> batches);

// A batch of so many samples whose encodings are still to be filled in. `pinned`: in page-locked memory, which a GPU
// copies from while the host goes on.
EncodedBatch make_empty_batch(std::int64_t samples, const EncodingShape& shape, bool pinned = false);
// Dtype of EncodedBatch::text.
torch::Dtype text_dtype(const EncodingShape& shape);

}  // namespace millrace
