#pragma once
#include "devices.h"
#include "mpi_world.h"

namespace millrace::test {

// A test whose ranks compute together. NCCL refuses two of them on one GPU.
template <class Parameter = torch::DeviceType>
class OnDevicesOfRanks : public OnDevices<Parameter> {
 protected:
  void SetUp() override {
    if (!this->is_cuda()) return;
    std::int64_t missing = ranks_on_this_node() - gpu_count();
    test_world().group().all_reduce_max(std::span(&missing, 1));  // nodes differ, and all ranks must take part or none
    if (missing > 0) GTEST_SKIP() << "NCCL needs a GPU for each rank of a node; " << missing << " are missing";
  }
  torch::Device device() const { return OnDevices<Parameter>::device(test_world().local_rank()); }
};

using OnDeviceOfRanks = OnDevicesOfRanks<>;

}  // namespace millrace::test
