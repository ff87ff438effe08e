// On a machine with a GPU for every rank (a group of one does), and in tests/rehearsal on pretended ones.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "millrace/comm/collectives.h"
#include "mpi_world.h"

namespace millrace {
namespace {

void check(cudaError_t code) {
  ensure(code == cudaSuccess, cudaGetErrorString(code));
}

int gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// Stands for LibTorch's current stream. It waits for no other stream by itself.
void* compute_stream(int) {
  static const cudaStream_t stream = [] {
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking));
    return made;
  }();
  return stream;
}

cudaStream_t compute() {
  return static_cast<cudaStream_t>(compute_stream(0));
}

class GpuBuffer {
 public:
  GpuBuffer(std::size_t count, WireType type) : buffer_{nullptr, count, type} {
    check(cudaMalloc(&buffer_.data, buffer_.bytes()));
  }
  ~GpuBuffer() { cudaFree(buffer_.data); }
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;

  operator Buffer() const { return buffer_; }

 private:
  Buffer buffer_;
};

// Both as work of the compute stream. A bfloat16 is the upper half of a float, and all numbers here fit it exactly.
void write(Buffer to, const std::vector<float>& values) {
  const auto each = bytes_of(to.type);
  std::vector<std::byte> bytes(to.bytes());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]) >> (32 - 8 * each);
    std::memcpy(bytes.data() + i * each, &bits, each);
  }
  check(cudaMemcpyAsync(to.data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, compute()));
  check(cudaStreamSynchronize(compute()));
}

std::vector<float> read(Buffer from) {
  const auto each = bytes_of(from.type);
  std::vector<std::byte> bytes(from.bytes());
  check(cudaMemcpyAsync(bytes.data(), from.data, bytes.size(), cudaMemcpyDeviceToHost, compute()));
  check(cudaStreamSynchronize(compute()));
  std::vector<float> values(from.count);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * each, each);
    values[i] = std::bit_cast<float>(bits << (32 - 8 * each));
  }
  return values;
}

// Whole numbers so small that their sums are exact in bf16, in whatever order NCCL adds.
std::vector<float> numbers_of(int rank, std::size_t count) {
  std::vector<float> numbers(count);
  for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>((7 * i + 5 * rank) % 31);
  return numbers;
}

std::vector<float> sum_over(int ranks, std::size_t count) {
  std::vector<float> sum(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto numbers = numbers_of(rank, count);
    for (std::size_t i = 0; i < count; ++i) sum[i] += numbers[i];
  }
  return sum;
}

std::vector<float> part_of(const std::vector<float>& all, int index, int parts) {
  const auto each = all.size() / parts;
  return {all.begin() + index * each, all.begin() + (index + 1) * each};
}

class CudaCollectives : public testing::Test {
 protected:
  void SetUp() override {
    const auto& world = test_world();
    if (gpus() < ranks_on_this_node()) {
      GTEST_SKIP() << "NCCL needs a GPU for each of " << ranks_on_this_node() << " ranks; here are " << gpus();
    }
    check(cudaSetDevice(world.local_rank()));
    static const auto of_all_tests = make_device_collectives(world.group(), world.local_rank(), compute_stream);
    collectives = of_all_tests.get();
  }

  int rank() const { return collectives->rank(); }
  int size() const { return collectives->size(); }
  // The compute stream goes on behind all that was started.
  void join() const { collectives->join(collectives->mark()); }

  Collectives* collectives = nullptr;
};

class CudaCollectivesOf : public CudaCollectives, public testing::WithParamInterface<WireType> {
 protected:
  static constexpr std::size_t part = 100003;
  std::size_t count() const { return part * size(); }
};

TEST_P(CudaCollectivesOf, AllReduce) {
  const GpuBuffer data(part, GetParam());
  write(data, numbers_of(rank(), part));
  collectives->all_reduce_sum(data);
  join();
  EXPECT_EQ(read(data), sum_over(size(), part));
}

TEST_P(CudaCollectivesOf, AreDoneWhenTheHostHasWaited) {
  const GpuBuffer data(part, GetParam());
  write(data, numbers_of(rank(), part));
  collectives->all_reduce_sum(data);
  collectives->wait();
  EXPECT_EQ(read(data), sum_over(size(), part));  // by the compute stream, which has not joined the transfer
}

// Of several transfers that are under way the mark of a later one stands for those before it.
TEST_P(CudaCollectivesOf, AreJoinedByTheMarkOfALaterOne) {
  const GpuBuffer first(part, GetParam()), second(part, GetParam());
  write(first, numbers_of(rank(), part));
  write(second, numbers_of(rank(), part));
  collectives->all_reduce_sum(first);
  const auto earlier = collectives->mark();
  collectives->all_reduce_sum(second);
  join();
  collectives->join(earlier);  // nothing is left of it
  EXPECT_EQ(read(first), sum_over(size(), part));
  EXPECT_EQ(read(second), sum_over(size(), part));
}

TEST_P(CudaCollectivesOf, ReduceScatterInPlaceAndApart) {
  const auto before = numbers_of(rank(), count());
  const auto sum = part_of(sum_over(size(), count()), rank(), size());
  const GpuBuffer data(count(), GetParam()), apart(part, GetParam());
  write(data, before);

  collectives->reduce_scatter_sum(data, apart);
  join();
  EXPECT_EQ(read(apart), sum);
  EXPECT_EQ(read(data), before);

  collectives->reduce_scatter_sum(data, Buffer(data).part(rank(), size()));
  join();
  for (int index = 0; index < size(); ++index) {
    const auto expected = index == rank() ? sum : part_of(before, index, size());
    EXPECT_EQ(read(Buffer(data).part(index, size())), expected);
  }
}

TEST_P(CudaCollectivesOf, AllGatherInPlaceAndApart) {
  std::vector<float> expected;
  for (int from = 0; from < size(); ++from) {
    const auto numbers = numbers_of(from, part);
    expected.insert(expected.end(), numbers.begin(), numbers.end());
  }
  const GpuBuffer own(part, GetParam()), all(count(), GetParam()), in_place(count(), GetParam());

  write(own, numbers_of(rank(), part));
  collectives->all_gather(own, all);
  join();
  EXPECT_EQ(read(all), expected);

  const auto mine = Buffer(in_place).part(rank(), size());
  write(mine, numbers_of(rank(), part));
  collectives->all_gather(mine, in_place);
  join();
  EXPECT_EQ(read(in_place), expected);
}

TEST_P(CudaCollectivesOf, GathersThatStartTogether) {
  const GpuBuffer own(part, GetParam()), first(count(), GetParam()), second(count(), GetParam());
  write(own, numbers_of(rank(), part));
  collectives->together([&] {
    collectives->all_gather(own, first);
    collectives->all_gather(own, second);
  });
  join();
  EXPECT_EQ(part_of(read(first), rank(), size()), numbers_of(rank(), part));
  EXPECT_EQ(read(second), read(first));
}

TEST_P(CudaCollectivesOf, Broadcast) {
  const GpuBuffer data(part, GetParam());
  write(data, numbers_of(rank(), part));
  collectives->broadcast(data, size() - 1);
  join();
  EXPECT_EQ(read(data), numbers_of(size() - 1, part));
}

INSTANTIATE_TEST_SUITE_P(Elements, CudaCollectivesOf, testing::Values(WireType::f32, WireType::bf16),
                         [](const auto& info) { return info.param == WireType::f32 ? "f32" : "bf16"; });

// Holds the compute stream up until it is opened, at its own end at the latest.
class Gate {
 public:
  Gate() { check(cudaLaunchHostFunc(compute(), wait, this)); }
  ~Gate() {
    open();
    cudaStreamSynchronize(compute());
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() {
    open_ = true;
    open_.notify_one();
  }

 private:
  static void wait(void* gate) { static_cast<Gate*>(gate)->open_.wait(false); }
  std::atomic<bool> open_ = false;
};

// Everything is queued before the first of it may run, so what is seen is the order on the GPU. The gather takes long
// enough that its last byte would be overwritten before it is read, and read before it is written.
TEST_F(CudaCollectives, StartBehindEarlierWorkAndHoldUpLaterWork) {
  const std::size_t bytes = (std::size_t{256} << 20) / static_cast<std::size_t>(size());
  const GpuBuffer own(bytes, WireType::byte), all(bytes * size(), WireType::byte), seen(1, WireType::byte);
  const auto last = [](Buffer buffer) { return buffer.begin() + buffer.count - 1; };

  // The first time is for what the driver and NCCL do only once, and may stop the GPU for.
  for (const bool first_time : {true, false}) {
    check(cudaMemsetAsync(Buffer(own).data, 1, bytes, compute()));
    check(cudaMemsetAsync(Buffer(all).data, 1, bytes * size(), compute()));
    Gate gate;
    if (first_time) gate.open();
    check(cudaMemsetAsync(Buffer(own).data, 2, bytes, compute()));
    collectives->all_gather(own, all);
    join();
    check(cudaMemsetAsync(last(own), 3, 1, compute()));
    check(cudaMemcpyAsync(Buffer(seen).data, last(all), 1, cudaMemcpyDeviceToDevice, compute()));
  }

  const auto byte_at = [](const std::byte* place) {
    std::byte value{};
    check(cudaMemcpy(&value, place, 1, cudaMemcpyDeviceToHost));
    return std::to_integer<int>(value);
  };
  EXPECT_EQ(byte_at(Buffer(seen).begin()), 2);
  for (int from = 0; from < size(); ++from) {
    const auto theirs = Buffer(all).part(from, size());
    EXPECT_EQ(byte_at(theirs.begin()), 2);
    EXPECT_EQ(byte_at(last(theirs)), 2);
  }
}

// As at the end of a step: the compute stream is to wait for the last transfer, which waits for its own earlier work.
TEST_F(CudaCollectives, OwnWorkBeforeAJoinedTransferIsNotWaitingForOthers) {
  const GpuBuffer data(8, WireType::f32);
  collectives->all_reduce_sum(data);  // what NCCL does the first time only may stop the GPU, which a gate would hold up
  collectives->wait();
  write(data, numbers_of(rank(), 8));
  Gate gate;
  collectives->all_reduce_sum(data);
  join();
  int calls = 0;
  collectives->wait([&] {
    ++calls;
    gate.open();
  });
  EXPECT_GE(calls, 1);
  EXPECT_EQ(read(data), sum_over(size(), 8));
}

TEST_F(CudaCollectives, RefuseWhatCannotBeAddedOrDoesNotFit) {
  const GpuBuffer bytes(8, WireType::byte), numbers(8, WireType::f32);
  EXPECT_THROW(collectives->all_reduce_sum(bytes), Error);
  EXPECT_THROW(collectives->reduce_scatter_sum(numbers, Buffer(numbers).part(0, 2 * size())), Error);
  EXPECT_THROW(collectives->all_gather(numbers, Buffer(numbers).part(0, 2)), Error);
}

Error error_of_gpu(int device) {
  try {
    make_device_collectives(test_world().group(), device, compute_stream);
  } catch (const Error& error) {
    return error;
  }
  return {Exit::done, "no error"};
}

TEST(CudaCollectivesAreNotMade, ForAGpuThatIsNotThere) {
  const auto error = error_of_gpu(1000);
  EXPECT_EQ(error.exit(), Exit::suspect_node);
  EXPECT_NE(std::string(error.what()).find("CUDA failed"), std::string::npos) << error.what();
}

TEST(CudaCollectivesAreNotMade, ForRanksThatShareAGpu) {
  if (gpus() == 0 || ranks_on_this_node() < 2) GTEST_SKIP() << "needs two ranks and a GPU; here are " << gpus();
  const auto error = error_of_gpu(0);
  EXPECT_EQ(error.exit(), Exit::usage);
  EXPECT_NE(std::string(error.what()).find("ranks 0 and 1 share GPU"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace millrace
