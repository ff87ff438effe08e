#pragma once
#include "app_config.h"
#include "millrace/models/unet_cost.h"
#include "millrace/parallel/shard_plan.h"
#include "millrace/produce/producer_config.h"

namespace millrace {

// A micro-batch of latents (C, height, width) as `train` computes it with these settings.
UNetPass training_pass(const ModelConfig& model, int micro_batch, std::int64_t height, std::int64_t width,
                       torch::Device device);

// Whether a pass of one trainer alone may be a CUDA graph without being asked for (model.cuda_graphs=auto).
bool suits_cuda_graphs(const UNet2DConditionConfig& unet, const config::Auto<bool>& fused_kernels,
                       torch::Device device);

// Whether passes are CUDA graphs: model.cuda_graphs, and what `auto` stands for.
bool uses_cuda_graphs(const TrainConfig& config, const UNet2DConditionConfig& unet, const ShardPlan& shards,
                      torch::Device device);

// Of how many such passes a GPU keeps the memory. Graphs have theirs for themselves: beside it lies that of passes
// which go on by kernels, where model.cuda_graphs=true among several trainers or with record.steps, and else a part of
// one for validation and pictures, which have no gradients; whether there are any or not, so that batch.micro=auto does
// not change with what may change at a restart.
double passes_in_memory(const TrainConfig& config, const UNet2DConditionConfig& unet, const ShardPlan& shards,
                        torch::Device device);

}  // namespace millrace
