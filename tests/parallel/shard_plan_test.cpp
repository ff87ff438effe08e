#include <gtest/gtest.h>

#include "error_of.h"
#include "millrace/parallel/shard_plan.h"

namespace millrace {
namespace {

TEST(ShardPlan, DdpReplicatesAndShardGradOpSplits) {
  const std::vector<std::string> hosts = {"n1", "n1", "n1", "n2", "n2", "n2"};
  const auto ddp = plan_shards({.strategy = Strategy::ddp}, hosts);
  EXPECT_EQ(ddp.shards, 1);
  EXPECT_EQ(ddp.replicas, 6);
  EXPECT_EQ(ddp.replica_of(4), 4);
  const auto sharded = plan_shards({.strategy = Strategy::shard_grad_op}, hosts);
  EXPECT_EQ(sharded.shards, 6);
  EXPECT_EQ(sharded.replicas, 1);
  EXPECT_EQ(sharded.shard_of(4), 4);
  EXPECT_FALSE(ddp.splits_parameters() || sharded.splits_parameters());
}

TEST(ShardPlan, FullShardSplitsParametersToo) {
  const auto full = plan_shards({.strategy = Strategy::full_shard}, {"n1", "n2", "n2"});
  EXPECT_EQ(full.shards, 3);
  EXPECT_EQ(full.replicas, 1);
  EXPECT_TRUE(full.splits_parameters());
  EXPECT_FALSE(plan_shards({.strategy = Strategy::full_shard}, {"n1"}).splits_parameters());  // there is nobody else
}

std::string refusal(const ParallelConfig& config, const std::vector<std::string>& hosts) {
  const auto error = test::error_of([&] { plan_shards(config, hosts); });
  EXPECT_EQ(error.exit(), Exit::usage);
  return error.what();
}

TEST(ShardPlan, HybridSplitsInsideANodeAndReplicatesAcross) {
  const auto plan = plan_shards({.strategy = Strategy::hybrid}, {"n1", "n1", "n1", "n2", "n2", "n2"});
  EXPECT_EQ(plan.shards, 3);
  EXPECT_EQ(plan.replicas, 2);
  EXPECT_EQ(plan.shard_of(4), 1);
  EXPECT_EQ(plan.replica_of(4), 1);
  const auto by_two = plan_shards({.strategy = Strategy::hybrid, .shard_size = {2}}, {"n1", "n2", "n3", "n4"});
  EXPECT_EQ(by_two.shards, 2);
  EXPECT_EQ(by_two.replicas, 2);
  EXPECT_EQ(plan_shards({.strategy = Strategy::hybrid}, {"n1"}).shards, 1);
}

TEST(ShardPlan, AHybridCopyThatLiesOnTwoNodesIsToldOf) {
  std::vector<std::string> hosts;
  for (const char* const node : {"n1", "n2", "n3"}) hosts.insert(hosts.end(), 8, node);
  const auto complaint_at = [&](int shard_size) {
    return complaint_about_nodes(plan_shards({.strategy = Strategy::hybrid, .shard_size = {shard_size}}, hosts), hosts);
  };
  for (const int inside : {1, 2, 4, 8}) EXPECT_FALSE(complaint_at(inside)) << inside;
  for (const int wanted : {12, 24}) EXPECT_FALSE(complaint_at(wanted)) << wanted;  // more than a node has
  for (const int across : {3, 6}) {
    ASSERT_TRUE(complaint_at(across)) << across;
    EXPECT_NE(complaint_at(across)->find("n1 and n2 share a copy"), std::string::npos) << *complaint_at(across);
  }
  EXPECT_FALSE(complaint_about_nodes(plan_shards({.strategy = Strategy::shard_grad_op}, hosts), hosts));
  hosts = {"n1", "n1", "n2", "n2", "n2", "n2", "n3", "n3"};
  ASSERT_TRUE(complaint_at(4));
  EXPECT_NE(complaint_at(4)->find("a number that divides 2 "), std::string::npos) << *complaint_at(4);
}

TEST(ShardPlan, HybridNeedsNodesThatAreAlikeAndInOrder) {
  const ParallelConfig hybrid{.strategy = Strategy::hybrid};
  EXPECT_EQ(refusal(hybrid, {"n1", "n1", "n2"}), "parallel.strategy=hybrid: n1 has 2 trainers, n2 has 1");
  EXPECT_EQ(refusal(hybrid, {"n1", "n2", "n1", "n2"}),
            "parallel.strategy=hybrid: the trainers of n1 do not follow each other");
  EXPECT_EQ(refusal({.strategy = Strategy::hybrid, .shard_size = {2}}, {"n1", "n2", "n1", "n2"}),
            "parallel.strategy=hybrid: the trainers of n1 do not follow each other");
  EXPECT_EQ(refusal({.strategy = Strategy::hybrid, .shard_size = {4}}, std::vector<std::string>(6, "n1")),
            "parallel.shard_size = 4 does not divide the 6 trainers");
}

}  // namespace
}  // namespace millrace
