#include "millrace/nn/device_work.h"

#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/utils.h>

#include <string>
#include <utility>
#include <vector>

#include "devices.h"
#include "nn/meta_streams.h"

namespace millrace {
namespace {

class DeviceWorkOnDevice : public test::OnDevice {};
MILLRACE_ON_DEVICES(DeviceWorkOnDevice);

torch::Tensor numbers(torch::Device device) {
  return torch::arange(2 * 3 * 4 * 5, torch::kFloat32).view({2, 3, 4, 5}).to(device);
}

TEST_P(DeviceWorkOnDevice, ADownloadHoldsItsValuesOnceTheWorkIsDone) {
  EXPECT_TRUE(DeviceWork().is_done());
  for (const bool channels_last : {false, true}) {
    auto tensor = numbers(device());
    if (channels_last) tensor = tensor.contiguous(torch::MemoryFormat::ChannelsLast);
    const auto host = start_download(tensor);
    const DeviceWork work(device());
    tensor.zero_();  // afterwards, in the order of the device
    work.synchronize();
    EXPECT_TRUE(work.is_done());
    EXPECT_TRUE(host.is_cpu() && host.is_contiguous());
    EXPECT_EQ(host.is_pinned(), is_cuda());
    const bool is_the_tensor = device().is_cpu() && !channels_last;  // nothing is copied, and it was zeroed
    if (!is_the_tensor) {
      EXPECT_TRUE(torch::equal(host, numbers(torch::kCPU)));
    }
  }
}

TEST_P(DeviceWorkOnDevice, AnUploadIsThereForWhatFollows) {
  const auto host = torch::empty({1 << 20}, torch::TensorOptions(torch::kFloat32).pinned_memory(is_cuda()));
  for (int round = 0; round < 20; ++round) {
    host.fill_(round);
    Upload first(host, device()), second(host, device());
    const auto sum = second.take() + first.take();
    EXPECT_EQ(sum.device(), device());
    EXPECT_TRUE(torch::equal(sum.cpu(), torch::full({1 << 20}, 2.0f * round)));
  }
}

// What is asked of streams.
using Asked = std::vector<std::pair<std::string, c10::StreamId>>;
Asked asked;

struct NotingDevice final : test::MetaStreams {
  void record(void**, const c10::Stream& in, c10::DeviceIndex, c10::EventFlag) const override {
    asked.emplace_back("records", in.id());
  }
  void block(void*, const c10::Stream& in) const override { asked.emplace_back("waits", in.id()); }
};
const NotingDevice noting_device;
const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::Meta, &noting_device);

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("record_stream", [](at::Tensor&, c10::Stream user) { asked.emplace_back("keeps memory", user.id()); });
}

// Without `record_stream` the copy's stream would have the memory back while the taker still reads it.
TEST(DeviceWork, AnUploadIsOrderedBeforeItsTakerWhichKeepsItsMemory) {
  if (gpu_count() > 0) GTEST_SKIP() << "a process copies to one GPU";
  using test::computing, test::copying;
  asked.clear();
  Upload on_its_way(numbers(torch::kCPU), torch::kMeta);
  EXPECT_EQ(asked, (Asked{{"records", copying}}));
  EXPECT_TRUE(on_its_way.take().is_meta());
  EXPECT_EQ(asked, (Asked{{"records", copying}, {"waits", computing}, {"keeps memory", computing}}));
}

TEST(DeviceWork, TheCpuCopiesNothing) {
  const auto tensor = numbers(torch::kCPU);
  EXPECT_TRUE(DeviceWork(torch::kCPU).is_done());
  EXPECT_TRUE(start_download(tensor).is_alias_of(tensor));
  EXPECT_TRUE(Upload(tensor, torch::kCPU).take().is_alias_of(tensor));
}

}  // namespace
}  // namespace millrace
