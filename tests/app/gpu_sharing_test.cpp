#include "launch/gpu_sharing.h"

#include <gmock/gmock.h>

namespace millrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(SharedGpus, OneForEachIsFine) {
  EXPECT_THAT(judge_shared_gpus({"GPU-a", "GPU-b", "GPU-c", "GPU-d"}, {0, 1, 2, 3}), IsEmpty());
  EXPECT_THAT(judge_shared_gpus({"GPU-a"}, {0}), IsEmpty());
}

TEST(SharedGpus, RanksWithoutAGpuShareNone) {
  EXPECT_THAT(judge_shared_gpus({"", "", ""}, {0, 1, 2}), IsEmpty());
  EXPECT_THAT(judge_shared_gpus({"", "GPU-a", ""}, {0, 1, 2}), IsEmpty());
}

TEST(SharedGpus, ProducersMayShare) {
  EXPECT_THAT(judge_shared_gpus({"GPU-a", "GPU-b", "GPU-a"}, {0, 1}),
              ElementsAre("ranks 0, 2 use the same GPU, GPU-a: each is slower"));
  EXPECT_THAT(judge_shared_gpus({"GPU-a", "GPU-b", "GPU-b", "GPU-c", "GPU-c"}, {0}),
              ElementsAre(HasSubstr("ranks 1, 2"), HasSubstr("ranks 3, 4")));
}

TEST(SharedGpus, TrainersMayNot) {
  const std::vector<std::vector<std::string>> cases = {
      {"GPU-a", "GPU-a"}, {"GPU-b", "GPU-a", "GPU-c", "GPU-a"}, {"GPU-a", "GPU-b", "", "GPU-a", "GPU-a"}};
  for (const auto& uuids : cases) {
    std::vector<int> all;
    for (std::size_t rank = 0; rank < uuids.size(); ++rank) all.push_back(static_cast<int>(rank));
    try {
      judge_shared_gpus(uuids, all);
      ADD_FAILURE() << testing::PrintToString(uuids);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::usage);
      EXPECT_THAT(error.what(), HasSubstr("GPU-a"));
      EXPECT_THAT(error.what(), HasSubstr("of them train"));
      EXPECT_THAT(error.hint(), HasSubstr("roles.producers"));
    }
  }
}

std::vector<int> crowded(const std::vector<std::string>& uuids, const std::vector<std::string>& hosts,
                         const std::vector<int>& trainers) {
  std::vector<int> ranks;
  for (const auto& [rank, with] : judge_sharing(uuids, hosts, trainers).crowded) ranks.push_back(rank);
  return ranks;
}

TEST(SharedGpus, AreOfAHostThatHasLostOneWhereOthersHaveEnough) {
  const std::vector<std::string> uuids = {"a", "b", "c", "c", ""}, hosts = {"n0", "n0", "n1", "n1", "n2"};
  const auto lost = judge_sharing(uuids, hosts, {0, 1, 2, 3});
  EXPECT_EQ(lost.ranks_per_gpu, 2);
  ASSERT_EQ(lost.crowded.size(), 1);
  EXPECT_EQ(lost.crowded[0].rank, 3);
  EXPECT_EQ(lost.crowded[0].with, 2);
  EXPECT_THAT(crowded(uuids, hosts, {0}), IsEmpty()) << "hosts with other roles";
  EXPECT_THAT(crowded({"a", "b", "c", "c"}, {"n0", "n0", "n1", "n1"}, {0, 2}), ElementsAre(3)) << "a producer";
}

TEST(SharedGpus, AreWantedWhereAllHostsOfAKindHaveThem) {
  const auto wanted = judge_sharing({"a", "a", "b", "b"}, {"n0", "n0", "n1", "n1"}, {0, 1, 2, 3});
  EXPECT_EQ(wanted.ranks_per_gpu, 2);
  EXPECT_THAT(wanted.crowded, IsEmpty());
  EXPECT_THAT(crowded({"a", "a"}, {"n0", "n0"}, {0, 1}), IsEmpty());
  EXPECT_THAT(crowded({"a", "b", "c", "c", "d", "d"}, {"n0", "n0", "n1", "n1", "n2", "n2"}, {0, 1}), IsEmpty())
      << "producers, two to a GPU, beside trainers with one each";
  EXPECT_EQ(judge_sharing({"", ""}, {"n0", "n1"}, {0, 1}).ranks_per_gpu, 1);
}

TEST(Devices, AreTheSameOnAllTrainers) {
  EXPECT_THAT(odd_devices({"", ""}, {0, 1}), IsEmpty());
  EXPECT_THAT(odd_devices({"GPU-a", "GPU-b", ""}, {0, 1}), IsEmpty()) << "a producer may do without";
  EXPECT_THAT(odd_devices({"GPU-c", "", "GPU-d"}, {0, 1, 2}), ElementsAre(1));
  EXPECT_THAT(odd_devices({"", "GPU-e", "", ""}, {0, 1, 2, 3}), ElementsAre(1));
  EXPECT_THAT(odd_devices({"GPU-f", ""}, {0, 1}), ElementsAre(1)) << "whose GPU may be gone";
}

}  // namespace
}  // namespace millrace
