// What NCCL is asked for by one of several ranks, without a GPU: what an executable defines comes before CUDA's and
// NCCL's functions, and here they take notes. nccl_test sees what becomes of it.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <array>
#include <cstdio>
#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "group_backend.h"
#include "millrace/comm/collectives.h"

namespace {

char transfers, work, communicator;  // stand for what CUDA and NCCL make
std::deque<char> events;

// The call, from where and to where, elements and their type, the operation or the root.
using Asked = std::tuple<std::string, const void*, const void*, std::size_t, ncclDataType_t, int>;
Asked asked;
std::tuple<int, int, int> asked_for_communicator;  // of so many ranks, as which, whether calls wait

// What comes into a stream: a transfer, or an event that is recorded or waited for.
using Ordered = std::tuple<std::string, cudaEvent_t, cudaStream_t>;
std::vector<Ordered> ordered;

ncclResult_t note(Asked call, ncclComm_t comm, cudaStream_t stream) {
  asked = std::move(call);
  ordered.emplace_back(std::get<0>(asked), nullptr, stream);
  return comm == reinterpret_cast<ncclComm_t>(&communicator) && stream == reinterpret_cast<cudaStream_t>(&transfers)
             ? ncclSuccess
             : ncclInvalidArgument;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  std::snprintf(id, static_cast<std::size_t>(bytes), "0000:0%d:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  for (int* const priority : {least, greatest})
    if (priority) *priority = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int, int) {
  *stream = reinterpret_cast<cudaStream_t>(&transfers);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* made, unsigned int) {
  *made = reinterpret_cast<cudaEvent_t>(&events.emplace_back());
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ordered.emplace_back("record", event, stream);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  ordered.emplace_back("wait", event, stream);
  return cudaSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId, int rank, ncclConfig_t* config) {
  *comm = reinterpret_cast<ncclComm_t>(&communicator);
  asked_for_communicator = {ranks, rank, config->blocking};
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream) {
  return note({"all_reduce", from, to, count, type, operation}, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                               ncclComm_t comm, cudaStream_t stream) {
  return note({"reduce_scatter", from, to, count, type, operation}, comm, stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return note({"all_gather", from, to, count, type, 0}, comm, stream);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return note({"broadcast", from, to, count, type, root}, comm, stream);
}
}

namespace millrace {
namespace {

// Rank 1 of two; the other one does what this one does, on another GPU.
class RankOneOfTwo final : public GroupBackend {
 public:
  int rank() const override { return 1; }
  int size() const override { return 2; }
  std::shared_ptr<GroupBackend> split(int, int) const override { return std::make_shared<RankOneOfTwo>(); }
  std::shared_ptr<GroupBackend> duplicate() const override { return std::make_shared<RankOneOfTwo>(); }
  void set_time_limit(double) override {}
  double limit_seconds() const override { return 300; }
  void barrier() const override {}
  void broadcast(std::span<std::byte>, int) const override {}
  void all_reduce(std::span<double>, Reduction) const override {}
  void all_reduce(std::span<std::int64_t>, Reduction) const override {}
  std::vector<std::string> gather_strings(const std::string&) const override { return {}; }
  std::vector<std::string> all_gather_strings(const std::string& mine) const override { return {"another", mine}; }
  Transfer receiver(int, int, std::span<std::byte>, std::shared_ptr<const void>) const override { return {}; }
  Transfer sender(int, int, std::span<const std::byte>) const override { return {}; }
};

class CudaCollectivesAsk : public testing::Test {
 protected:
  Collectives& collectives() const {
    static const auto of_all_tests = make_device_collectives(Group(std::make_shared<RankOneOfTwo>()), /*device=*/0,
                                                             [](int) -> void* { return &work; });
    return *of_all_tests;
  }

  std::array<float, 8> numbers{};
  const Buffer all = buffer_of(numbers);
  float* const second_half = numbers.data() + 4;
};

TEST_F(CudaCollectivesAsk, ForACommunicatorWhoseCallsReturn) {
  collectives();
  EXPECT_EQ(asked_for_communicator, std::tuple(2, 1, 0));
}

TEST_F(CudaCollectivesAsk, ForSums) {
  collectives().all_reduce_sum(all);
  EXPECT_EQ(asked, Asked("all_reduce", numbers.data(), numbers.data(), 8, ncclFloat32, ncclSum));
  collectives().reduce_scatter_sum(all, all.part(1, 2));
  EXPECT_EQ(asked, Asked("reduce_scatter", numbers.data(), second_half, 4, ncclFloat32, ncclSum));
  collectives().all_reduce_sum({numbers.data(), 16, WireType::bf16});
  EXPECT_EQ(asked, Asked("all_reduce", numbers.data(), numbers.data(), 16, ncclBfloat16, ncclSum));
}

TEST_F(CudaCollectivesAsk, ForTheSameBytesElsewhere) {
  collectives().all_gather(all.part(1, 2), all);
  EXPECT_EQ(asked, Asked("all_gather", second_half, numbers.data(), 4, ncclFloat32, 0));
  collectives().broadcast({numbers.data(), 32, WireType::byte}, 1);
  EXPECT_EQ(asked, Asked("broadcast", numbers.data(), numbers.data(), 32, ncclUint8, 1));
}

TEST_F(CudaCollectivesAsk, StreamsToWaitForEachOther) {
  auto& both = collectives();
  ordered.clear();
  both.all_reduce_sum(all);
  const auto first = both.mark();
  both.all_gather(all.part(1, 2), all);
  const auto second = both.mark();
  both.join(second);
  both.join(first);
  ASSERT_EQ(ordered.size(), 9u) << "a mark that has been joined with a later one is waited for again";
  const auto begin = std::get<cudaEvent_t>(ordered[0]), after_first = std::get<cudaEvent_t>(ordered[3]),
             after_second = std::get<cudaEvent_t>(ordered[7]);
  EXPECT_NE(after_first, after_second);
  auto* const arithmetic = reinterpret_cast<cudaStream_t>(&work);
  auto* const transfer = reinterpret_cast<cudaStream_t>(&transfers);
  EXPECT_EQ(ordered, (std::vector<Ordered>{{"record", begin, arithmetic},
                                           {"wait", begin, transfer},
                                           {"all_reduce", nullptr, transfer},
                                           {"record", after_first, transfer},
                                           {"record", begin, arithmetic},
                                           {"wait", begin, transfer},
                                           {"all_gather", nullptr, transfer},
                                           {"record", after_second, transfer},
                                           {"wait", after_second, arithmetic}}));
}

}  // namespace
}  // namespace millrace
