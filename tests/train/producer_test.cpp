#include "millrace/train/producer.h"
#include "millrace/encode/parcel.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(PlanParcelSamples, WholeStepsAboutSixtyFourImagesAtMostEightSteps) {
  struct Case {
    int per_step, parcel;
  };
  for (const auto [per_step, parcel] : {Case{1, 8}, Case{2, 16}, Case{8, 64}, Case{9, 63}, Case{24, 48}, Case{33, 33},
                                        Case{64, 64}, Case{65, 65}, Case{256, 256}})
    EXPECT_EQ(plan_parcel_samples(per_step), parcel) << per_step << " samples per stripe and step";
}

TEST(PlanParcelBytes, HoldsEveryParcelOfThatManySamples) {
  ParcelContent content;
  content.batch.moments = torch::zeros({3, 8, 4, 4}, torch::kHalf);
  content.batch.text = torch::zeros({3, 77, 16}, torch::kHalf);
  content.batch.refs.resize(3);
  for (auto& ref : content.batch.refs) ref.id = std::string(200, 'x');
  EXPECT_GE(plan_parcel_bytes(3, {8, 4, 4}, {77, 16}), pack_parcel(content).size());
}

}  // namespace
}  // namespace millrace
