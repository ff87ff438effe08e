#pragma once
#include <torch/types.h>

#include <memory>
#include <string>

#include "millrace/nn/gpu_use.h"

namespace millrace {

// A GPU at a moment; 0 = not known.
struct GpuState {
  double clock_mhz = 0;  // of the SMs
  double celsius = 0;
  double slowed_by = 0;  // bits of NVML's nvmlClocksThrottleReasons

  std::string describe() const;  // "1305 MHz, 84 C, throttle reasons 0x40"; empty where nothing is known
};

// Watches a GPU by NVML, once a second, in a thread of its own. Where there is no NVML, or it does not know the GPU,
// nothing is watched and nothing is known.
class GpuWatch {
 public:
  // `uuid`: gpu_identity's; empty = none.
  explicit GpuWatch(const std::string& uuid);
  ~GpuWatch();

  GpuUse use();      // since the start
  GpuState state();  // at the last look

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // null: nothing is watched
};

// Of a CUDA device; empty for others.
std::string gpu_uuid(torch::Device device);

}  // namespace millrace
