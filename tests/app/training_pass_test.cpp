#include <gmock/gmock.h>

#include "train/training_pass.h"

namespace millrace {
namespace {

TEST(TrainingPass, IsAGraphWhereOneGpuTrainsAloneAndNothingGoesByKernels) {
  TrainConfig config;
  UNet2DConditionConfig unet{};
  ShardPlan shards;
  const auto is_graph = [&](torch::DeviceType device = torch::kCUDA) {
    return plan_cuda_graphs(config, unet, shards, device).used;
  };
  const auto passes = [&] { return passes_in_memory(config, unet, shards, torch::kCUDA); };
  EXPECT_TRUE(is_graph());
  EXPECT_FALSE(is_graph(torch::kCPU));
  EXPECT_THAT(passes(), testing::AllOf(testing::Gt(1), testing::Lt(1.5))) << "pictures have memory of their own";
  config.model.cuda_graphs = {false};
  EXPECT_EQ(passes(), 1) << "they have that of the training";
  config.model.cuda_graphs = {};
  config.model.fused_kernels = {false};
  EXPECT_FALSE(is_graph());
  config.model.fused_kernels = {};

  shards = {Strategy::ddp, /*shards=*/1, /*replicas=*/2};
  EXPECT_FALSE(is_graph());
  EXPECT_EQ(passes(), 1);
  config.model.cuda_graphs = {true};
  EXPECT_TRUE(is_graph());
  EXPECT_EQ(passes(), 2);

  shards = {};
  config.record.steps = {3};
  EXPECT_TRUE(is_graph());
  EXPECT_EQ(passes(), 2);
  config.model.cuda_graphs = {};
  EXPECT_FALSE(is_graph());
  EXPECT_EQ(passes(), 1);

  config.record.steps = {};
  unet.dropout = 0.1;
  EXPECT_FALSE(is_graph());
  unet.dropout = 0;
  EXPECT_TRUE(is_graph());
  config.model.cuda_graphs = {false};
  EXPECT_FALSE(is_graph());
}

TEST(TrainingPass, SaysWhatRulesGraphsOut) {
  constexpr config::Auto<bool> asked{true}, automatic{}, off{false};
  const GraphCase alone{.device = torch::kCUDA};
  const auto why_not = [&](const GraphCase& graph_case) {
    const auto graphs = plan_cuda_graphs(asked, graph_case);
    EXPECT_EQ(graphs.used, graphs.why_not.empty());
    EXPECT_FALSE(plan_cuda_graphs(automatic, graph_case).used && !graphs.used) << "auto takes what may be asked for";
    EXPECT_FALSE(plan_cuda_graphs(off, graph_case).used);
    return graphs.why_not;
  };
  EXPECT_EQ(why_not(alone), "");
  EXPECT_EQ(why_not({.device = torch::kCPU, .rank = 3}), "the trainer on rank 3 computes on a CPU");
  EXPECT_EQ(why_not({.device = torch::kCUDA, .dropout = 0.1}), "a graph would repeat this U-Net's dropout");
  EXPECT_EQ(why_not({.device = torch::kCUDA, .shards = {Strategy::full_shard, /*shards=*/2, /*replicas=*/1}}),
            "with full_shard weights come and go within a pass");
  const GraphCase shown{.device = torch::kCUDA, .shows_kernels = true};
  EXPECT_EQ(why_not(shown), "");
  EXPECT_TRUE(plan_cuda_graphs(asked, shown).has_passes_by_kernels);
  EXPECT_FALSE(plan_cuda_graphs(automatic, shown).used);
  EXPECT_THROW(check_cuda_graphs(asked, plan_cuda_graphs(asked, {.device = torch::kCPU})), Error);
  EXPECT_NO_THROW(check_cuda_graphs(automatic, plan_cuda_graphs(automatic, {.device = torch::kCPU})));
}

}  // namespace
}  // namespace millrace
