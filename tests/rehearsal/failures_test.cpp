// What NcclCollectives makes of a network that breaks, a GPU that hangs, and ranks that do not come.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>

#include "millrace/comm/fault.h"
#include "mpi_world.h"
#include "pretended_gpu.h"
#include "rehearsal.h"

namespace millrace {
namespace {

constexpr double limit_seconds = 1;

// A GPU's arithmetic, which holds until it is opened.
class Arithmetic {
 public:
  explicit Arithmetic(int device) : stream_(static_cast<pretended::Stream*>(stream_of(device))) {
    stream_->push([this] { open_.wait(false); });
  }
  ~Arithmetic() {
    open_ = true;
    open_.notify_all();
    stream_->synchronize();
  }
  static void* stream_of(int device) {
    static std::map<int, pretended::Stream*> streams;
    auto*& stream = streams[device];
    if (!stream) {
      const int before = pretended::present_gpu();
      cudaSetDevice(device);
      stream = new pretended::Stream(pretended::Stream::Kind::thread);
      cudaSetDevice(before);
    }
    return stream;
  }

 private:
  pretended::Stream* const stream_;
  std::atomic<bool> open_ = false;
};

// A short limit on waiting, which all groups of a process share.
class Impatience {
 public:
  explicit Impatience(const Group& group) : group_(group), usual_(group.time_limit()) {
    group_.set_time_limit(limit_seconds);
  }
  ~Impatience() { group_.set_time_limit(usual_); }

 private:
  const Group& group_;
  const double usual_;
};

// A GPU for each test, since what has failed on one stays in its stream.
class RehearsedFailure : public testing::Test {
 protected:
  RehearsedFailure() : group_(test_world().group().duplicate()) {}
  ~RehearsedFailure() override {
    pretended::mend();
    test_world().group().barrier();
  }

  int rank() const { return group_.rank(); }
  bool is_last() const { return rank() == group_.size() - 1; }
  std::unique_ptr<Collectives> make(void* (*stream)(int) = pretended::host_stream) {
    static int made = 0;
    device_ = ++made * group_.size() + rank();
    return make_rehearsed_collectives(group_, device_, stream);
  }

  // What `work` throws.
  std::string error_of(const std::function<void()>& work, Exit exit) const {
    const Impatience impatient(group_);
    try {
      work();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), exit) << error.what();
      return std::string(error.what()) + "\n" + error.hint();
    }
    return "no error";
  }
  static void expect_part(const std::string& whole, const std::string& part) {
    EXPECT_NE(whole.find(part), std::string::npos) << "no \"" << part << "\" in " << whole;
  }

  Group group_;
  int device_ = 0;
  // A transfer that comes in the end may still write to it.
  std::vector<float>& numbers_ = *new std::vector<float>(1000, 1);
};

TEST_F(RehearsedFailure, OfTheNetworkEndsAWaitOnTheRankThatSeesIt) {
  const auto collectives = make();
  const auto blamed_before = fault::is_this_rank_to_blame();
  if (is_last()) {
    pretended::fail_nccl(ncclRemoteError, "socket closed");
  } else {
    collectives->all_reduce_sum(buffer_of(numbers_));  // in vain
  }
  const auto error = error_of([&] { collectives->wait(); }, Exit::suspect_node);
  expect_part(error, is_last() ? "socket closed" : "waited 1 s for the others in NCCL transfers");
  EXPECT_EQ(fault::is_this_rank_to_blame(), blamed_before) << "nobody knows which end has failed";
}

TEST_F(RehearsedFailure, OfARankThatStaysAwayIsAWaitInVain) {
  if (group_.size() == 1) GTEST_SKIP() << "needs another rank";
  const auto collectives = make();
  if (is_last()) return;
  collectives->all_reduce_sum(buffer_of(numbers_));
  expect_part(error_of([&] { collectives->wait(); }, Exit::suspect_node), "waited 1 s for the others");
}

TEST_F(RehearsedFailure, OfRanksThatAskForDifferentThingsIsAWaitInVain) {
  if (group_.size() == 1) GTEST_SKIP() << "needs another rank";
  const auto collectives = make();
  is_last() ? collectives->broadcast(buffer_of(numbers_), 0) : collectives->all_reduce_sum(buffer_of(numbers_));
  expect_part(error_of([&] { collectives->wait(); }, Exit::suspect_node), "waited 1 s for the others");
}

TEST_F(RehearsedFailure, OfItsOwnArithmeticIsTheRanksOwn) {
  bool has_limit = false;
  {
    const Impatience impatient(group_);
    has_limit = group_.time_limit() == limit_seconds;
  }
  if (!has_limit) GTEST_SKIP() << "a world without mpirun has no limit on waiting";
  const auto collectives = make(Arithmetic::stream_of);
  const Arithmetic without_end(device_);
  collectives->all_reduce_sum(buffer_of(numbers_));
  int looks = 0;
  expect_part(error_of([&] { collectives->wait([&] { ++looks; }); }, Exit::suspect_node),
              "its GPU has computed for 1 s without end");
  EXPECT_GT(looks, 0);
}

TEST_F(RehearsedFailure, OfTheGpuIsTheRanksOwn) {
  const auto collectives = make();
  collectives->all_reduce_sum(buffer_of(numbers_));
  pretended::fail_gpu(cudaErrorIllegalAddress);
  expect_part(error_of([&] { collectives->wait(); }, Exit::suspect_node), "an illegal memory access");
  EXPECT_TRUE(fault::is_this_rank_to_blame());
}

TEST_F(RehearsedFailure, ForLackOfMemorySaysWhatLeavesMore) {
  const auto collectives = make();
  pretended::fail_nccl(ncclUnhandledCudaError, "Failed to CUDA calloc 4194304 bytes: out of memory");
  const auto error = error_of([&] { collectives->all_reduce_sum(buffer_of(numbers_)); }, Exit::usage);
  expect_part(error, "no memory left for NCCL");
  expect_part(error, "batch.micro");
}

TEST_F(RehearsedFailure, ForLackOfSharedMemoryNamesIt) {
  const auto collectives = make();
  pretended::fail_nccl(ncclSystemError,
                       "Error while creating shared memory segment /dev/shm/nccl-Ab12Cd (size 9637888)");
  const auto error = error_of([&] { collectives->all_reduce_sum(buffer_of(numbers_)); }, Exit::suspect_node);
  expect_part(error, "no room in /dev/shm");
  expect_part(error, "--shm-size");
}

}  // namespace
}  // namespace millrace
