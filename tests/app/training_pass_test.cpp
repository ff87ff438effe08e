#include <gtest/gtest.h>

#include "run/training_pass.h"

namespace millrace {
namespace {

TEST(TrainingPass, IsAGraphWhereOneGpuTrainsAloneAndNothingGoesByKernels) {
  TrainConfig config;
  UNet2DConditionConfig unet;
  ShardPlan shards;
  const auto is_graph = [&](torch::DeviceType device = torch::kCUDA) {
    return uses_cuda_graphs(config, unet, shards, device);
  };
  EXPECT_TRUE(is_graph());
  EXPECT_EQ(passes_in_memory(config, shards), 1);
  EXPECT_FALSE(is_graph(torch::kCPU));

  shards = {Strategy::ddp, /*shards=*/1, /*replicas=*/2};
  EXPECT_FALSE(is_graph());
  EXPECT_EQ(passes_in_memory(config, shards), 1);
  config.model.cuda_graphs = {true};
  EXPECT_TRUE(is_graph());
  EXPECT_EQ(passes_in_memory(config, shards), 2);

  shards = {};
  config.record.steps = {3};
  EXPECT_TRUE(is_graph());
  EXPECT_EQ(passes_in_memory(config, shards), 2);
  config.model.cuda_graphs = {};
  EXPECT_FALSE(is_graph());
  EXPECT_EQ(passes_in_memory(config, shards), 1);

  config.record.steps = {};
  unet.dropout = 0.1;
  EXPECT_FALSE(is_graph());
  unet.dropout = 0;
  EXPECT_TRUE(is_graph());
  config.model.cuda_graphs = {false};
  EXPECT_FALSE(is_graph());
}

}  // namespace
}  // namespace millrace
