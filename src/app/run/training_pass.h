#pragma once
#include "millrace/models/unet_cost.h"
#include "millrace/produce/producer_config.h"

namespace millrace {

// A micro-batch of latents (C, height, width) as `train` computes it with these settings.
UNetPass training_pass(const ModelConfig& model, int micro_batch, std::int64_t height, std::int64_t width,
                       torch::Device device);

}  // namespace millrace
