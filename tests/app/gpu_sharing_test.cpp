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

TEST(Devices, AreTheSameOnAllTrainers) {
  EXPECT_THAT(odd_devices({"", ""}, {0, 1}), IsEmpty());
  EXPECT_THAT(odd_devices({"GPU-a", "GPU-b", ""}, {0, 1}), IsEmpty()) << "a producer may do without";
  EXPECT_THAT(odd_devices({"GPU-c", "", "GPU-d"}, {0, 1, 2}), ElementsAre(1));
  EXPECT_THAT(odd_devices({"", "GPU-e", "", ""}, {0, 1, 2, 3}), ElementsAre(1));
  EXPECT_THAT(odd_devices({"GPU-f", ""}, {0, 1}), ElementsAre(1)) << "whose GPU may be gone";
}

}  // namespace
}  // namespace millrace
