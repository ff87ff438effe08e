#include "millrace/nn/device_work.h"

#include <gtest/gtest.h>
#include <torch/utils.h>

#include "devices.h"

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

TEST(DeviceWork, TheCpuCopiesNothing) {
  const auto tensor = numbers(torch::kCPU);
  EXPECT_TRUE(DeviceWork(torch::kCPU).is_done());
  EXPECT_TRUE(start_download(tensor).is_alias_of(tensor));
  EXPECT_TRUE(Upload(tensor, torch::kCPU).take().is_alias_of(tensor));
}

}  // namespace
}  // namespace millrace
