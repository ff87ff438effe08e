#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <optional>

#include "app_config.h"
#include "millrace/core/error.h"
#include "train/micro_batch.h"
#include "train/roles.h"
#include "train/routing.h"
#include "train/run_memory.h"

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Names = std::vector<std::string>;

constexpr const char* a100 = "NVIDIA A100-SXM4-40GB";
constexpr const char* a10g = "NVIDIA A10G";

RolesConfig by_count(int producers) {
  return {.producers = {producers}};
}
RolesConfig by_gpu(std::optional<std::string> producer, std::optional<std::string> trainer) {
  return {.producer_gpu = std::move(producer), .trainer_gpu = std::move(trainer)};
}

// The error of `body`, which must be one of usage; its text and hint together.
template <class Body>
std::string usage_error(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::usage) << error.what();
    return std::string(error.what()) + " | " + error.hint();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(PlanRoles, EveryRankDoesBothUnlessTold) {
  for (const auto& gpus : {Names{""}, Names{a100, a100, a100}}) {
    const auto roles = plan_roles(gpus, {});
    EXPECT_TRUE(roles.all_in_one);
    EXPECT_EQ(roles.trainers, roles.producers);
    for (int rank = 0; rank < static_cast<int>(gpus.size()); ++rank) {
      EXPECT_TRUE(roles.trains(rank));
      EXPECT_TRUE(roles.produces(rank));
    }
    EXPECT_FALSE(roles.trains(static_cast<int>(gpus.size())));
  }
}

TEST(PlanRoles, ByCountTheLastRanksProduce) {
  const auto roles = plan_roles(Names(5), by_count(2));
  EXPECT_FALSE(roles.all_in_one);
  EXPECT_THAT(roles.trainers, ElementsAre(0, 1, 2));
  EXPECT_THAT(roles.producers, ElementsAre(3, 4));
}

TEST(PlanRoles, AreCalledByWhatTheRankDoes) {
  EXPECT_EQ(role_name(plan_roles(Names(2), {}), 1), "trainer and producer");
  const auto apart = plan_roles(Names(3), by_count(1));
  EXPECT_EQ(role_name(apart, 1), "trainer");
  EXPECT_EQ(role_name(apart, 2), "producer");
}

TEST(PlanRoles, ByGpuNamesInAnyCaseAndOrder) {
  const Names gpus = {a10g, a100, a10g, a100};
  struct Case {
    const char* what;
    RolesConfig config;
  };
  const Case cases[] = {{"both named", by_gpu("a10g", "A100")},
                        {"the others train", by_gpu("a10G", std::nullopt)},
                        {"the others produce", by_gpu(std::nullopt, "a100-sxm4")}};
  for (const auto& [what, config] : cases) {
    SCOPED_TRACE(what);
    const auto roles = plan_roles(gpus, config);
    EXPECT_FALSE(roles.all_in_one);
    EXPECT_THAT(roles.trainers, ElementsAre(1, 3));
    EXPECT_THAT(roles.producers, ElementsAre(0, 2));
  }
}

TEST(PlanRoles, AGpuThatIsGoneIsNoOtherRole) {
  struct Case {
    const char* what;
    Names gpus;
    RolesConfig config;
    std::vector<int> lost;
  };
  const Case cases[] = {{"a trainer", {a100, "", a10g}, by_gpu("a10g", "a100"), {1}},
                        {"CPUs that encode beside GPUs", {a100, "", a10g}, by_gpu(std::nullopt, "a100"), {}},
                        {"a producer, which would train", {a10g, a100, ""}, by_gpu("a10g", std::nullopt), {2}},
                        {"CPUs that encode", {a100, "", ""}, by_gpu(std::nullopt, "a100"), {}},
                        {"no GPUs at all", {"", ""}, by_gpu("a10g", "a100"), {}},
                        {"roles by number", {a100, "", a10g}, by_count(1), {}},
                        {"every rank does both", {a100, ""}, {}, {}}};
  for (const auto& [what, gpus, config, lost] : cases) EXPECT_EQ(ranks_that_lost_a_gpu(gpus, config), lost) << what;
}

// What stands inside a word is another GPU: A10, A10G and A100; L4 and L40S.
TEST(PlanRoles, GpuNamesAreWholeWords) {
  struct Case {
    const char *wanted, *others;
    const char* name;
  };
  const Case cases[] = {{"NVIDIA A10", a10g, "a10"},
                        {"NVIDIA A10", a100, "a10"},
                        {"NVIDIA L4", "NVIDIA L40S", "l4"},
                        {"NVIDIA A40", "NVIDIA A4000", "A40"},
                        {a100, "NVIDIA A100-SXM4-80GB", "40gb"},
                        {a100, a10g, "NVIDIA A100"},
                        {"NVIDIA A100 80GB PCIe", a100, "a100 80gb"}};
  for (const auto& [wanted, others, name] : cases) {
    SCOPED_TRACE(name);
    EXPECT_THAT(plan_roles({others, wanted, others}, by_gpu(std::nullopt, name)).trainers, ElementsAre(1));
  }
}

TEST(PlanRoles, NamesTheKeyOfWhatCannotBe) {
  struct Case {
    Names gpus;
    RolesConfig config;
    const char* key;
    const char* what;
  };
  const Case cases[] = {
      {Names(2), by_count(2), "roles.producers", "2 of 2 ranks"},
      {Names(1), by_count(1), "roles.producers", "leaves none to train"},
      {{a100, a10g}, by_gpu("nvidia", "a100"), "roles.producer_gpu", "rank 0"},
      {{a100, a10g, "Tesla T4"},
       by_gpu("a10g", "a100"),
       "roles.trainer_gpu",
       "rank 2: its GPU \"Tesla T4\" fits neither"},
      {{a100, a100}, by_gpu("a10g", "a100"), "roles.producer_gpu", "2 trainers and 0 producers"},
      {{a100, a100}, by_gpu("a100", std::nullopt), "roles.producer_gpu", "0 trainers and 2 producers"},
      {{"", ""}, by_gpu(std::nullopt, "a100"), "roles.trainer_gpu", "0 trainers"},
  };
  for (const auto& [gpus, config, key, what] : cases) {
    const auto text = usage_error([&, &gpus = gpus, &config = config] { plan_roles(gpus, config); });
    EXPECT_THAT(text, HasSubstr(key));
    EXPECT_THAT(text, HasSubstr(what));
  }
}

Roles roles_of(int trainers, int producers) {
  return plan_roles(Names(static_cast<std::size_t>(trainers + producers)), by_count(producers));
}

TEST(PlanRouting, TrainersHaveRunsOfStripesProducersEveryPth) {
  const auto routing = plan_routing(roles_of(2, 3), 8);
  EXPECT_THAT(routing.trainer_of_stripe, ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(routing.producer_of_stripe, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1));
  EXPECT_THAT(routing.stripes_of_trainer(1), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(routing.stripes_of_producer(2), ElementsAre(2, 5));
}

TEST(PlanRouting, AllInOneProducesWhatItTrains) {
  const auto routing = plan_routing(plan_roles(Names(2), {}), 4);
  EXPECT_THAT(routing.trainer_of_stripe, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(routing.producer_of_stripe, routing.trainer_of_stripe);
}

TEST(PlanRouting, TrainersNeedNotDivideTheStripes) {
  const auto routing = plan_routing(roles_of(3, 2), 8);
  EXPECT_THAT(routing.trainer_of_stripe, ElementsAre(0, 0, 0, 1, 1, 1, 2, 2));
  EXPECT_THAT(routing.stripes_of_trainer(2), ElementsAre(6, 7));
  EXPECT_THAT(routing.trainers_served_by(1), ElementsAre(0, 1, 2));
  EXPECT_THAT(routing.producers_serving(2), ElementsAre(0, 1));
  const auto both = plan_routing(plan_roles(Names(3), {}), 4);
  EXPECT_THAT(both.trainer_of_stripe, ElementsAre(0, 0, 1, 2));
  EXPECT_EQ(both.producer_of_stripe, both.trainer_of_stripe);
}

TEST(PlanRouting, PeersAreTheRanksOfTheOtherSide) {
  const auto roles = roles_of(2, 3);
  const auto routing = plan_routing(roles, 4);  // producers 0 1 2 0 of the stripes, trainers 0 0 1 1
  EXPECT_THAT(peer_ranks(roles, routing, roles.trainers[0]), ElementsAre(roles.producers[0], roles.producers[1]));
  EXPECT_THAT(peer_ranks(roles, routing, roles.trainers[1]), ElementsAre(roles.producers[0], roles.producers[2]));
  EXPECT_EQ(peer_ranks(roles, routing, roles.producers[0]), roles.trainers);
  EXPECT_THAT(peer_ranks(roles, routing, roles.producers[1]), ElementsAre(roles.trainers[0]));
}

// Of all trainers: runs of stripes in their order, whose lengths differ by at most one.
void expect_even_runs(const Routing& routing, int stripes, int trainers) {
  ASSERT_EQ(routing.trainer_of_stripe.size(), static_cast<std::size_t>(stripes));
  ASSERT_EQ(routing.trainers(), trainers);
  std::uint32_t next = 0;
  for (int trainer = 0; trainer < trainers; ++trainer) {
    const auto own = routing.stripes_of_trainer(trainer);
    EXPECT_GE(static_cast<int>(own.size()), stripes / trainers);
    EXPECT_LE(static_cast<int>(own.size()), (stripes + trainers - 1) / trainers);
    for (const auto stripe : own) EXPECT_EQ(stripe, next++);
  }
  EXPECT_EQ(next, static_cast<std::uint32_t>(stripes));
  EXPECT_EQ(routing.is_even(), stripes % trainers == 0);
  EXPECT_EQ(describe_shares(routing).empty(), stripes % trainers == 0);
}

void expect_every_stripe_once(const Routing& routing, int stripes, int producers) {
  std::vector<int> produced(static_cast<std::size_t>(stripes));
  for (int producer = 0; producer < producers; ++producer) {
    const auto own = routing.stripes_of_producer(producer);
    EXPECT_FALSE(own.empty()) << "producer " << producer;
    for (const auto stripe : own) ++produced[stripe];
  }
  EXPECT_THAT(produced, testing::Each(1));
}

// What a producer thinks of a trainer is what the trainer thinks of it.
void expect_agreement(const Routing& routing, int trainers, int producers) {
  for (int producer = 0; producer < producers; ++producer) {
    const auto served = routing.trainers_served_by(producer);
    const auto places = routing.trainer_places(producer);
    for (const auto stripe : routing.stripes_of_producer(producer))
      EXPECT_EQ(served.at(static_cast<std::size_t>(places.at(stripe))), routing.trainer_of_stripe[stripe]);
    for (int trainer = 0; trainer < trainers; ++trainer) {
      const auto sources = routing.producers_serving(trainer);
      EXPECT_EQ(std::ranges::count(sources, producer), std::ranges::count(served, trainer));
    }
  }
  for (int trainer = 0; trainer < trainers; ++trainer) {
    const auto sources = routing.producers_serving(trainer);
    const auto places = routing.producer_places(trainer);
    const auto own = routing.stripes_of_trainer(trainer);
    EXPECT_EQ(places.size(), own.size());
    for (const auto stripe : own)
      EXPECT_EQ(sources.at(static_cast<std::size_t>(places.at(stripe))), routing.producer_of_stripe[stripe]);
  }
}

TEST(PlanRouting, SharesAreRunsOfStripesAsEvenAsCanBe) {
  for (const int stripes : {1, 2, 7, 8, 10, 12, 30, 32}) {
    for (int trainers = 1; trainers <= stripes; ++trainers) {
      for (int producers = 0; producers <= stripes; producers += producers < 4 ? 1 : 5) {
        SCOPED_TRACE(fmt::format("{} stripes, {} trainers, {} producers", stripes, trainers, producers));
        const auto roles =
            producers ? roles_of(trainers, producers) : plan_roles(Names(static_cast<std::size_t>(trainers)), {});
        const auto routing = plan_routing(roles, stripes);
        expect_even_runs(routing, stripes, trainers);
        expect_every_stripe_once(routing, stripes, producers ? producers : trainers);
        expect_agreement(routing, trainers, producers ? producers : trainers);
      }
    }
  }
}

TEST(PlanRouting, LargeRunsToo) {
  for (const auto& [stripes, trainers] : {std::pair{512, 24}, {512, 31}, {2048, 1023}, {4096, 1024}, {4096, 4095}}) {
    SCOPED_TRACE(fmt::format("{} stripes, {} trainers", stripes, trainers));
    expect_even_runs(plan_routing(roles_of(trainers, 1), stripes), stripes, trainers);
  }
}

TEST(MicroBatch, UnequalSharesNeedNoWholeOnes) {
  EXPECT_EQ(micro_batch_of_share(plan_routing(roles_of(3, 1), 8), 8, 2), 2);
  EXPECT_EQ(micro_batch_of_share(plan_routing(roles_of(7, 1), 96), 192, 14), 14);  // as auto takes it where 27 fit
  usage_error([] { micro_batch_of_share(plan_routing(roles_of(2, 1), 8), 8, 3); });
}

// configs/sd2_base_256.yaml says 64, for 32 trainers; 64 have 32 images each.
TEST(MicroBatch, IsTheWholeShareWhereThatIsLess) {
  EXPECT_EQ(micro_batch_of_share(plan_routing(roles_of(32, 1), 512), 2048, 64), 64);
  EXPECT_EQ(micro_batch_of_share(plan_routing(roles_of(64, 1), 512), 2048, 64), 32);
  EXPECT_EQ(micro_batch_of_share(plan_routing(roles_of(256, 1), 512), 2048, 64), 8);
  EXPECT_EQ(micro_batch_of_share(plan_routing(roles_of(3, 1), 32), 32, 16), 11);
  EXPECT_EQ(micro_batch_of_share(plan_routing(roles_of(2, 1), 8), 8, 7), 4);
}

// Of 24, 24 and 16 images with 20 at once, a trainer with 24 makes 2 passes of a micro-batch of 24, one with 16
// makes 1.
TEST(MicroBatch, UnequalSharesNeedEquallyManyPassesWhereTheseAreCollective) {
  const auto unequal = plan_routing(roles_of(3, 1), 8);
  const ShardPlan split{Strategy::full_shard, 3};
  EXPECT_THAT(usage_error([&] { check_passes(unequal, split, 24, 20); }), HasSubstr("more than 20 images"));
  check_passes(unequal, split, 20, 20);
  check_passes(unequal, {Strategy::shard_grad_op, 3}, 24, 20);
  check_passes(plan_routing(roles_of(2, 1), 8), {Strategy::full_shard, 2}, 24, 20);
}

TEST(MicroBatch, TheLargestThatFitsIsChosen) {
  const auto choose = [](int trainers, int stripes, int global_batch, int fitting) {
    return choose_micro_batch(plan_routing(roles_of(trainers, 1), stripes), global_batch, fitting);
  };
  EXPECT_EQ(choose(4, 64, 2048, 4096), 512);  // the whole share
  EXPECT_EQ(choose(4, 64, 2048, 511), 256);
  EXPECT_EQ(choose(4, 64, 2048, 40), 32);
  EXPECT_EQ(choose(4, 64, 2048, 1), 1);
  EXPECT_EQ(choose(2, 10, 70, 34), 7);  // of 35
  EXPECT_EQ(choose(2, 10, 70, 6), 5);
  EXPECT_EQ(choose(2, 2, 26, 12), 1);  // 13 has no other
  // Shares of 220, 220 and 200, in 3, 2, 1 and 220 turns.
  EXPECT_EQ(choose(3, 32, 640, 100), 74);
  EXPECT_EQ(choose(3, 32, 640, 159), 110);
  EXPECT_EQ(choose(3, 32, 640, 300), 220);
  EXPECT_EQ(choose(3, 32, 640, 1), 1);
  EXPECT_EQ(choose(7, 96, 192, 24), 14);     // of 28 at most
  EXPECT_EQ(choose(31, 512, 2048, 70), 68);  // all of it
  for (int trainers = 1; trainers <= 40; ++trainers)
    for (int fitting = 1; fitting <= 64; ++fitting) {
      const auto routing = plan_routing(roles_of(trainers, 1), 64);
      const int micro = choose_micro_batch(routing, 1920, fitting), share = routing.largest_share(1920);
      EXPECT_LE(micro, fitting);
      EXPECT_EQ(micro_batch_of_share(routing, 1920, micro), micro);  // who sets what was chosen is not refused
      if (routing.is_even()) continue;
      const auto turns = [share](int images) { return (share + images - 1) / images; };
      EXPECT_EQ(turns(micro), turns(fitting)) << trainers << " trainers, " << fitting;
      if (micro > 1) {
        EXPECT_GT(turns(micro - 1), turns(micro)) << trainers << " trainers, " << fitting;
      }
    }
}

TEST(MicroBatch, RanksOfOneDeviceShareItsMemory) {
  const Names devices = {"a", "a", "b"};
  EXPECT_EQ(share_of_memory(8, "a", devices), 4);
  EXPECT_EQ(share_of_memory(8, "b", devices), 8);
}

TEST(PlanRouting, KnowsTheLargestShare) {
  for (int trainers = 1; trainers <= 64; ++trainers) {
    const auto routing = plan_routing(roles_of(trainers, 1), 64);
    std::size_t most = 0;
    for (int trainer = 0; trainer < trainers; ++trainer)
      most = std::max(most, routing.stripes_of_trainer(trainer).size());
    EXPECT_EQ(routing.largest_share(1920), 30 * static_cast<int>(most)) << trainers;
  }
}

// The trainers come first, on two hosts of three.
TEST(PlanRoles, OneProducerOfEachHostIsItsFirst) {
  const std::vector<std::string> hosts = {"a", "b", "b", "c", "b", "c"};
  const std::vector<int> producers = {2, 3, 4, 5};
  std::vector<int> first;
  for (int rank = 0; rank < 6; ++rank)
    if (is_first_on_host(producers, hosts, rank)) first.push_back(rank);
  EXPECT_EQ(first, (std::vector<int>{2, 3}));
}

TEST(PlanRoles, AreTellableInALine) {
  EXPECT_EQ(describe_numbers({}), "");
  EXPECT_EQ(describe_numbers({3}), "3");
  EXPECT_EQ(describe_numbers({0, 1, 2, 5, 7, 8}), "0-2 5 7-8");
  EXPECT_EQ(describe(roles_of(1, 1)), "trainers 0, producers 1");
  EXPECT_EQ(describe(roles_of(24, 24)), "trainers 0-23, producers 24-47");
  EXPECT_EQ(describe(plan_roles(Names(3), {})), "every rank trains and produces");
  Roles alternating;
  for (int rank = 0; rank < 1000; ++rank) (rank % 2 ? alternating.producers : alternating.trainers).push_back(rank);
  EXPECT_EQ(describe(alternating),
            "trainers 0 2 4 6 8 10 12 14 ... (500 in all), producers 1 3 5 7 9 11 13 15 ... (500 in all)");
}

TEST(PlanRoles, FewHostsAreNamedManyCounted) {
  EXPECT_EQ(describe_hosts({"n1", "n0", "n1"}), "n0, n1");
  std::vector<std::string> hosts;
  for (int rank = 0; rank < 1000; ++rank) hosts.push_back(fmt::format("n{}", rank / 8));
  EXPECT_EQ(describe_hosts(hosts), "125 hosts");
}

TEST(PlanRouting, TellsWhatARankDoes) {
  const auto roles = roles_of(2, 3);
  const auto routing = plan_routing(roles, 8);
  EXPECT_EQ(describe_work(roles, routing, 1), "trainer of stripes 4-7");
  EXPECT_EQ(describe_work(roles, routing, 3), "producer of stripes 1 4 7");
  const auto both = plan_roles(Names(2), {});
  EXPECT_EQ(describe_work(both, plan_routing(both, 2), 1), "trainer and producer of stripe 1");
}

TEST(PlanRouting, TellsUnequalShares) {
  EXPECT_EQ(describe_shares(plan_routing(roles_of(3, 1), 32)), "stripes 11 11 10");
  EXPECT_EQ(describe_shares(plan_routing(roles_of(4, 1), 32)), "");
  EXPECT_EQ(describe_shares(plan_routing(roles_of(100, 1), 512)), "stripes 6 on 12 trainers, 5 on 88");
}

TEST(PlanRouting, NamesTheKeyOfWhatCannotBe) {
  struct Case {
    int trainers, producers, stripes, global_batch, micro_batch;
    const char* key;
    const char* what;
  };
  const Case cases[] = {
      {9, 1, 8, 24, 4, "data.stripes", "9 trainers for 8 stripes"},
      {2, 1, 8, 32, 5, "batch.micro must divide 16", "5 x 2"},
      {1, 9, 8, 32, 4, "batch.global", "9 producers for 8 stripes"},
  };
  for (const auto& [trainers, producers, stripes, global_batch, micro_batch, key, what] : cases) {
    const auto roles = roles_of(trainers, producers);
    const auto text = usage_error([&, stripes = stripes, global_batch = global_batch, micro_batch = micro_batch] {
      micro_batch_of_share(plan_routing(roles, stripes), global_batch, micro_batch);
    });
    EXPECT_THAT(text, HasSubstr(key));
    EXPECT_THAT(text, HasSubstr(what));
  }
}

}  // namespace
}  // namespace millrace
