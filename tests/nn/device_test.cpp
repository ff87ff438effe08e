#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <gmock/gmock.h>

#include <array>
#include <fstream>
#include <span>
#include <sstream>

#include "device_gpu.h"
#include "millrace/core/error.h"
#include "millrace/nn/device.h"

namespace millrace {
namespace {

template <class Call>
Exit exit_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.exit();
  }
  return Exit::done;
}

TEST(Device, WordsMeanWhatTheySay) {
  EXPECT_TRUE(resolve_device("cpu").is_cpu());
  EXPECT_EQ(resolve_device("auto").is_cuda(), gpu_count() > 0);
  EXPECT_EQ(exit_of([] { resolve_device("tpu"); }), Exit::usage);
}

TEST(Device, CudaThatIsNotThereIsAUsageError) {
  if (gpu_count() > 0) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(exit_of([] { resolve_device("cuda"); }), Exit::usage);
}

TEST(Device, FreedPinnedMemoryGoesBack) {
  if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  constexpr std::int64_t bytes = 256LL << 20;  // more than other tests leave in one piece
  const auto held = [] { return at::getHostAllocator(at::kCUDA)->get_stats().allocated_bytes.current; };
  (void)resolve_device("cuda");
  const auto before = held();
  (void)torch::zeros({bytes}, torch::TensorOptions(torch::kUInt8).pinned_memory(true));
  EXPECT_GE(held(), before + bytes) << "LibTorch keeps it";
  release_freed_pinned_memory();
  EXPECT_LE(held(), before);
}

TEST(Device, AUuidIsWrittenAsNvidiaSmiDoes) {
  constexpr std::array<unsigned char, 16> bytes{0x8f, 0x3c, 0x01, 0xab, 0x00, 0xff, 0x7e, 0x10,
                                                0xa2, 0xb3, 0xc4, 0xd5, 0xe6, 0xf7, 0x08, 0x19};
  EXPECT_EQ(gpu::format_uuid(std::as_bytes(std::span(bytes))), "GPU-8f3c01ab-00ff-7e10-a2b3-c4d5e6f70819");
}

TEST(Device, AProcessorHasItsNameOrOnArmItsNumbers) {
  std::istringstream named("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9B14\ncpu MHz\t\t: 2600\n");
  EXPECT_EQ(processor_name(named), "AMD EPYC 9B14");
  std::istringstream grace(
      "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
      "CPU variant\t: 0x0\nCPU part\t: 0xd4f\nCPU revision\t: 0\n\nprocessor\t: 1\nCPU implementer\t: 0x51\n");
  EXPECT_EQ(processor_name(grace), "ARM, implementer 0x41, part 0xd4f");
  std::istringstream nothing("processor\t: 0\n");
  EXPECT_EQ(processor_name(nothing), "CPU");
}

TEST(Device, GpusAreDealtRoundRobin) {
  if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(resolve_device("cuda", gpu_count()).index(), 0);
  const auto device = resolve_device("cuda");
  const auto tensor = torch::ones({1 << 20}, device);
  synchronize(device);
  EXPECT_GE(peak_memory_bytes(device), tensor.nbytes());
  EXPECT_FALSE(device_name(device).empty());
}

// Settings alone, so without a GPU, too. "high" is what TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 sets at the start.
TEST(Device, Float32IsNotTf32WhateverTheEnvironmentSays) {
  auto& context = at::globalContext();
  context.setFloat32MatmulPrecision("high");
  ASSERT_TRUE(context.allowTF32CuBLAS());
  compute_float32_exactly();
  EXPECT_FALSE(context.allowTF32CuBLAS());  // throws where the older and the newer settings contradict each other
  EXPECT_FALSE(context.allowTF32CuDNN());
  for (const auto op : {at::Float32Op::MATMUL, at::Float32Op::CONV, at::Float32Op::RNN})
    EXPECT_EQ(context.float32Precision(at::Float32Backend::CUDA, op), at::Float32Precision::IEEE);
}

TEST(Device, ProductsOf16BitsAreAddedInFloat32) {
  constexpr auto in_float32 = at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK;
  auto& context = at::globalContext();
  context.setAllowFP16ReductionCuBLAS(/*allow_reduced_precision=*/true, /*allow_splitk=*/true);
  context.setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/true, /*allow_splitk=*/true);
  compute_float32_exactly();
  EXPECT_EQ(context.allowFP16ReductionCuBLAS(), in_float32);
  EXPECT_EQ(context.allowBF16ReductionCuBLAS(), in_float32);
}

// Without a GPU, too: a CUDA build whose libraries the linker dropped, or the loader did not find, finds no GPU
// anywhere.
TEST(Device, TheCudaProductHasLibTorchsCudaInTheProcess) {
  std::ifstream maps("/proc/self/maps");
  const std::string loaded{std::istreambuf_iterator<char>(maps), {}};
  EXPECT_EQ(built_with_cuda(), bool{MILLRACE_WITH_CUDA});
  EXPECT_EQ(loaded.find("/libtorch_cuda.so") != std::string::npos, bool{MILLRACE_WITH_CUDA});
  EXPECT_THAT(cuda_versions(),
              testing::ContainsRegex(MILLRACE_WITH_CUDA ? "^1[0-9][.][0-9]+ .*, cuDNN 9[.][0-9.]+, NCCL 2[.][0-9.]+$"
                                                        : "^not in this build$"));
}

TEST(Dtype, AutoDependsOnTheDevice) {
  EXPECT_EQ(parse_dtype("auto", torch::kCPU), torch::kFloat32);
  EXPECT_EQ(parse_dtype("auto", torch::kCUDA), torch::kBFloat16);
  for (const std::string word : {"float32", "bfloat16", "float16"}) {
    EXPECT_EQ(dtype_name(parse_dtype(word, torch::kCPU)), word);
  }
  EXPECT_EQ(exit_of([] { parse_dtype("fp32", torch::kCPU); }), Exit::usage);
}

TEST(Device, TheProcessorHasANameAndMemory) {
  EXPECT_FALSE(device_name(torch::kCPU).empty());
  EXPECT_GT(peak_memory_bytes(torch::kCPU), std::uint64_t{1} << 20);
}

}  // namespace
}  // namespace millrace
