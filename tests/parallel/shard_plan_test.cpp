#include "millrace/parallel/shard_plan.h"

#include <gtest/gtest.h>

#include "millrace/core/error.h"

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
  EXPECT_TRUE(sharded.keep_parameters);
}

TEST(ShardPlan, RefusesWhatIsNotThere) {
  for (const auto strategy : {Strategy::full_shard, Strategy::hybrid}) {
    try {
      plan_shards({.strategy = strategy}, 4, 2);
      ADD_FAILURE() << to_string(strategy);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::usage);
      EXPECT_NE(std::string(error.what()).find(to_string(strategy)), std::string::npos);
    }
  }
  EXPECT_THROW(plan_shards({.strategy = Strategy::ddp, .shard_size = {2}}, 4, 2), Error);
}

}  // namespace
}  // namespace millrace
