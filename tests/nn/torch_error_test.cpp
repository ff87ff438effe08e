#include "millrace/nn/torch_error.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <torch/types.h>

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

TEST(TorchError, ATooSmallGpuIsAMatterOfKeys) {
  const auto error =
      translated([] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 2 GiB"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->exit(), Exit::usage);
  EXPECT_STREQ(error->what(), "CUDA out of memory. Tried to allocate 2 GiB");
  EXPECT_NE(error->hint().find("batch.micro"), std::string::npos);
}

TEST(TorchError, AGpuThatFailedIsASuspect) {
  const auto error = translated([] {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 719, "CUDA error: unspecified launch failure");
  });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->exit(), Exit::timeout);
}

TEST(TorchError, NoOtherIsKnown) {
  EXPECT_FALSE(translated([] { torch::ones({2}) + torch::ones({3}); }));
  EXPECT_FALSE(translated([] { throw std::runtime_error("x"); }));
}

}  // namespace
}  // namespace millrace
