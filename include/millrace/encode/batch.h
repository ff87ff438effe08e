#pragma once
#include <torch/torch.h>

#include <vector>

#include "millrace/data/sample.h"

namespace millrace {

// Consecutive encoded samples: what parcels, caches and trainers hold.
struct EncodedBatch {
  std::vector<SampleRef> refs;  // B
  torch::Tensor moments;        // f16 (B, 8, h, w): mean and log-variance of the posterior, not scaled
  torch::Tensor text;           // f16 (B, 77, C): text states of the true caption
};

}  // namespace millrace
