#include "millrace/nn/gpu_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace millrace {
namespace {

// ctest puts the folder of fake_nvml.cpp's library first.
bool has_fake_nvml() {
  const char* const path = std::getenv("LD_LIBRARY_PATH");
  return path && std::string(path).find("fake_nvml") != std::string::npos;
}

GpuUse watched(const std::string& uuid) {
  GpuWatch watch(uuid);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  return watch.use();
}

TEST(GpuWatch, TellsWhatNvmlTells) {
  if (!has_fake_nvml()) GTEST_SKIP() << "ctest runs it with a library that stands in for NVML";
  const auto use = watched("GPU-a");
  EXPECT_NEAR(use.busy.value(), 0.75, 1e-9);
  EXPECT_NEAR(use.memory_gib.value(), 20, 1e-9);
  EXPECT_NEAR(use.watts.value(), 400, 40);  // from the energy, not from its 1 mW of the moment
  EXPECT_GE(use.watts.seconds, 0.1);
}

TEST(GpuWatch, WhatAGpuDoesNotTellStaysUnknown) {
  if (!has_fake_nvml()) GTEST_SKIP() << "ctest runs it with a library that stands in for NVML";
  const auto use = watched("GPU-b");
  EXPECT_EQ(use.busy.seconds, 0);
  EXPECT_EQ(use.memory_gib.seconds, 0);
  EXPECT_NEAR(use.watts.value(), 250, 1e-9);
}

TEST(GpuWatch, TellsWhatSlowsAGpuDown) {
  if (!has_fake_nvml()) GTEST_SKIP() << "ctest runs it with a library that stands in for NVML";
  const auto state = GpuWatch("GPU-a").state();
  EXPECT_EQ(state.clock_mhz, 1305);
  EXPECT_EQ(state.celsius, 84);
  EXPECT_EQ(state.describe(), "1305 MHz, 84 C, throttle reasons 0x40");
  EXPECT_EQ(GpuWatch("GPU-b").state().describe(), "");
}

TEST(GpuWatch, NothingIsKnownOfOtherGpus) {
  for (const char* uuid : {"", "GPU-of-another-host"}) {
    EXPECT_EQ(watched(uuid).watts.seconds, 0) << uuid;
    EXPECT_EQ(GpuWatch(uuid).state().describe(), "") << uuid;
  }
}

TEST(GpuUse, MeansOfSeveralGpusAndTimesWeighBySeconds) {
  GpuUse use, other;
  use.watts.add(100, 1);
  other.watts.add(400, 3);
  use.add(other);
  EXPECT_EQ(use.watts.value(), 325);
  use.add(other, -1);
  EXPECT_EQ(use.watts.value(), 100);
}

}  // namespace
}  // namespace millrace
