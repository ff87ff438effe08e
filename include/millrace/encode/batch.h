#pragma once
#include <torch/types.h>

#include <vector>

#include "millrace/dataset/sample.h"

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

}  // namespace millrace
