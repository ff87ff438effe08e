#pragma once
#include <optional>
#include <string>

namespace millrace::nvml {

// What NVML tells of a GPU at a moment; what it does not know of this one is empty.
struct Reading {
  std::optional<double> busy;        // 0..1, of the last second or less
  std::optional<double> memory_gib;  // taken by all processes
  std::optional<double> joules;      // since the driver was loaded; GPUs before Volta do not count them
  std::optional<double> watts;       // now
  std::optional<double> clock_mhz;   // of the SMs, now
  std::optional<double> celsius;     // now
  std::optional<double> slowed_by;   // bits, now: why the clock is not higher
};

// nvmlDevice_t of the GPU with this UUID; null without NVML, or where it does not know the GPU. The library is looked
// for at run time, as drivers bring it: nothing is linked with it.
void* find(const std::string& uuid);
Reading read(void* device);

}  // namespace millrace::nvml
