#pragma once
#include "devices.h"
#include "mpi_world.h"

namespace millrace::test {

// A test whose ranks compute together. NCCL refuses two of them on one GPU.
template <class Parameter = torch::DeviceType>
class OnDevicesOfRanks : public OnDevices<Parameter> {
 protected:
  void SetUp() override {
    OnDevices<Parameter>::SetUp();
    if (this->IsSkipped() || !this->is_cuda() || test_world().local_size() <= gpu_count()) return;
    GTEST_SKIP() << "NCCL needs a GPU for each of " << test_world().local_size() << " ranks; here are " << gpu_count();
  }
  torch::Device device() const { return OnDevices<Parameter>::device(test_world().local_rank()); }
};

using OnDeviceOfRanks = OnDevicesOfRanks<>;

}  // namespace millrace::test
