#include "millrace/nn/torch_error.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <torch/types.h>

#include <new>

#include "millrace/core/phase.h"

namespace millrace {
namespace {

template <class Throw>
std::optional<Error> translated(Throw&& throw_it) {
  try {
    throw_it();
  } catch (...) {
    return present_torch_error();
  }
  return std::nullopt;
}

void expect_matter_of_keys(const std::optional<Error>& error, const std::string& what) {
  ASSERT_TRUE(error) << what;
  EXPECT_EQ(error->exit(), Exit::usage) << what;
  EXPECT_EQ(error->what(), what);
  EXPECT_NE(error->hint().find("batch.micro"), std::string::npos) << what;
}

TEST(TorchError, ATooSmallGpuIsAMatterOfKeys) {
  const std::string message = "CUDA out of memory. Tried to allocate 2 GiB";
  expect_matter_of_keys(translated([&] { TORCH_CHECK_WITH(OutOfMemoryError, false, message); }), message);
}

// It has been enough for a while: another start may go well.
TEST(TorchError, AGpuThatIsFullInTheMiddleOfATrainingIsNoMatterOfKeys) {
  const auto exit_in = [](const char* now, std::int64_t steps) {
    phase::current = now;
    phase::steps_taken = steps;
    const auto error = translated([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory"); });
    phase::current = phase::starting;
    phase::steps_taken = 0;
    return error.value().exit();
  };
  EXPECT_EQ(exit_in(phase::training, 21), Exit::suspect_node);
  EXPECT_EQ(exit_in(phase::waiting_for_samples, 21), Exit::suspect_node) << "of an encoder's thread";
  EXPECT_EQ(exit_in(phase::producing, 21), Exit::suspect_node);
  EXPECT_EQ(exit_in(phase::producing, 2), Exit::usage) << "encode.batch_size";
  EXPECT_EQ(exit_in(phase::training, 2), Exit::usage) << "a CUDA graph is recorded";
  EXPECT_EQ(exit_in(phase::painting, 1000), Exit::usage) << "for the first time, perhaps";
  EXPECT_EQ(exit_in(phase::loading, 0), Exit::usage);
}

// The runtime's own allocations, as cudaHostAlloc's of pinned memory: cudaErrorMemoryAllocation.
TEST(TorchError, SoIsMemoryThatCudaDoesNotGive) {
  const std::string message = "CUDA error: out of memory";
  expect_matter_of_keys(translated([&] {
                          throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 2, message);
                        }),
                        message);
  expect_matter_of_keys(translated([&] { TORCH_CHECK(false, message); }), message);
}

// The words of at::cuda's checks, with the names that cublasStatus_t and cudnnStatus_t have.
TEST(TorchError, SoIsMemoryThatCublasAndCudnnDoNotGet) {
  for (const std::string message :
       {"CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "CUDA driver error: out of memory", "Allocation on device 0 would exceed allowed memory. (out of memory)"})
    expect_matter_of_keys(translated([&] { TORCH_CHECK(false, message); }), message);
}

TEST(TorchError, SoIsMemoryThatTheHostDoesNotGive) {
  const auto expect_matter_of_host = [](const std::optional<Error>& error, const char* words) {
    ASSERT_TRUE(error) << words;
    EXPECT_EQ(error->exit(), Exit::usage) << words;
    EXPECT_THAT(error->what(), testing::HasSubstr(words));
    EXPECT_THAT(error->hint(), testing::AllOf(testing::HasSubstr("batch.micro"), testing::HasSubstr("ulimit -v"),
                                              testing::HasSubstr("control group")));
  };
  expect_matter_of_host(translated([] { throw std::bad_alloc(); }), "the host has too little memory");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which end the process there
  constexpr std::int64_t beyond_all_addresses = std::int64_t{1} << 50;
  expect_matter_of_host(translated([] { torch::empty({beyond_all_addresses}, torch::kUInt8); }),
                        "1125899906842624 bytes");
#endif
}

TEST(TorchError, AGpuThatFailedIsASuspect) {
  const auto error = translated([] {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 719, "CUDA error: unspecified launch failure");
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->exit(), Exit::suspect_node);
  EXPECT_EQ(error->hint().find("batch.micro"), std::string::npos);
}

TEST(TorchError, AGpuThatAnotherProcessHasIsNotBroken) {
  const auto error = translated([] {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 46, "CUDA error: the device is busy or unavailable");
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->exit(), Exit::suspect_node);
  EXPECT_THAT(error->hint(), testing::HasSubstr("exclusive-process"));
}

TEST(TorchError, AnyOtherIsABugWithoutItsStack) {
  const auto mismatch = translated([] { torch::ones({2}) + torch::ones({3}); });
  ASSERT_TRUE(mismatch);
  EXPECT_EQ(mismatch->exit(), Exit::bug);
  EXPECT_THAT(mismatch->what(),
              testing::AllOf(testing::HasSubstr("size of tensor a"), testing::Not(testing::HasSubstr("frame #"))));
  const auto cublas = translated([] { TORCH_CHECK(false, "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"); });
  ASSERT_TRUE(cublas);
  EXPECT_EQ(cublas->exit(), Exit::bug);
}

TEST(TorchError, WhatIsNotOfTorchIsNotKnown) {
  EXPECT_FALSE(translated([] { throw std::runtime_error("x"); }));
}

}  // namespace
}  // namespace millrace
