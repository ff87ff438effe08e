#pragma once
#include <string>

#include "app_config.h"
#include "millrace/models/unet_cost.h"
#include "millrace/parallel/shard_plan.h"
#include "millrace/produce/producer_config.h"

namespace millrace {

// The pass of a micro-batch of latents (C, height, width) as `train` computes it with these settings.
UNetPass training_pass(const ModelConfig& model, int micro_batch, std::int64_t height, std::int64_t width,
                       torch::Device device);

// What decides, besides model.cuda_graphs, whether passes are CUDA graphs.
struct GraphCase {
  torch::Device device = torch::kCPU;
  int rank = 0;        // whose device it is
  double dropout = 0;  // of the U-Net
  config::Auto<bool> fused_kernels{};
  ShardPlan shards{};
  bool shows_kernels = false;  // some passes go by kernels, to be recorded or profiled: record.steps, bench.profile
};

struct GraphPlan {
  bool used = false;
  std::string why_not = {};            // what rules graphs out; empty if they are used, or merely not wanted
  bool has_passes_by_kernels = false;  // besides graphs
};
// The one rule for train, its memory plan and bench. `asked`: model.cuda_graphs; `auto` uses them if every pass can be
// a graph and kernels are fused.
GraphPlan plan_cuda_graphs(const config::Auto<bool>& asked, const GraphCase& graph_case);
// `rank`: whose device it is.
GraphPlan plan_cuda_graphs(const TrainConfig& config, const UNet2DConditionConfig& unet, const ShardPlan& shards,
                           torch::Device device, int rank = 0);
// Error(usage) for model.cuda_graphs=true if graphs are ruled out.
void check_cuda_graphs(const config::Auto<bool>& asked, const GraphPlan& graphs);

// For how many passes' tensors a GPU has memory at once. CUDA graphs keep theirs to themselves; in addition there are
// passes that go by kernels (model.cuda_graphs=true with several trainers, or record.steps), or else a part of one for
// validation and pictures, which have no gradients. That part counts whether there are any or not, so that
// batch.micro=auto does not change with what may change at a restart.
double passes_in_memory(const TrainConfig& config, const UNet2DConditionConfig& unet, const ShardPlan& shards,
                        torch::Device device);

}  // namespace millrace
