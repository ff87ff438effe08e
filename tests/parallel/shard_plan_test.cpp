#include <gtest/gtest.h>

#include "millrace/parallel/shard_plan.h"

namespace millrace {
namespace {

TEST(ShardPlan, DdpReplicatesAndShardGradOpSplits) {
  const auto ddp = plan_shards({.strategy = Strategy::ddp}, 6, 3);
  EXPECT_EQ(ddp.shards, 1);
  EXPECT_EQ(ddp.replicas, 6);
  EXPECT_EQ(ddp.replica_of(4), 4);
  const auto sharded = plan_shards({.strategy = Strategy::shard_grad_op}, 6, 3);
  EXPECT_EQ(sharded.shards, 6);
  EXPECT_EQ(sharded.replicas, 1);
  EXPECT_EQ(sharded.shard_of(4), 4);
}

TEST(ShardPlan, WhatIsNotThereIsRefusedWithTheConfiguration) {
  struct Root {
    ParallelConfig parallel;
    void describe(config::Section& s) { s.section("parallel", parallel, "how trainers share the model"); }
  };
  for (const std::string setting :
       {"strategy=full_shard", "strategy=hybrid", "shard_size=2", "reduce_dtype=bfloat16"}) {
    Root root;
    const auto report = config::load(root, {.files = {}, .overrides = {"parallel." + setting}});
    ASSERT_EQ(report.problems().size(), 1u) << setting;
    EXPECT_NE(report.problems()[0].find("is not available yet"), std::string::npos) << report.problems()[0];
  }
}

}  // namespace
}  // namespace millrace
