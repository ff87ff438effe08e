// Stands in for libnvidia-ml.so.1: two GPUs. GPU-a is busy for 75 % of the time, has 20 GiB taken, counts energy, 400 W
// of it, and is slowed down by its heat of 84 degrees to 1305 MHz; GPU-b knows its power alone, 250 W.
#include <chrono>
#include <cstring>

namespace {
const char gpu_a = 'a', gpu_b = 'b';
constexpr int not_supported = 3, not_found = 6;
bool ready = false;
}  // namespace

extern "C" {
int nvmlInit_v2() {
  ready = true;
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, const void** device) {
  if (!ready) return 1;
  *device = std::strcmp(uuid, "GPU-a") == 0 ? &gpu_a : std::strcmp(uuid, "GPU-b") == 0 ? &gpu_b : nullptr;
  return *device ? 0 : not_found;
}
int nvmlDeviceGetUtilizationRates(const void* device, unsigned int* percents) {
  if (device != &gpu_a) return not_supported;
  percents[0] = 75, percents[1] = 10;
  return 0;
}
int nvmlDeviceGetMemoryInfo(const void* device, unsigned long long* total_free_used) {
  if (device != &gpu_a) return not_supported;
  total_free_used[0] = 80ull << 30, total_free_used[1] = 60ull << 30, total_free_used[2] = 20ull << 30;
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(const void* device, unsigned long long* millijoules) {
  if (device != &gpu_a) return not_supported;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  *millijoules = static_cast<unsigned long long>(400e3 * std::chrono::duration<double>(now).count());
  return 0;
}
int nvmlDeviceGetPowerUsage(const void* device, unsigned int* milliwatts) {
  *milliwatts = device == &gpu_a ? 1 : 250000;
  return 0;
}
int nvmlDeviceGetClockInfo(const void* device, int clock, unsigned int* mhz) {
  if (device != &gpu_a) return not_supported;
  const unsigned int graphics_sm_memory_video[] = {1, 1305, 2, 3};
  *mhz = graphics_sm_memory_video[clock];
  return 0;
}
int nvmlDeviceGetTemperature(const void* device, int sensor, unsigned int* celsius) {
  if (device != &gpu_a || sensor != 0) return not_supported;
  *celsius = 84;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(const void* device, unsigned long long* reasons) {
  if (device != &gpu_a) return not_supported;
  *reasons = 0x40;  // nvmlClocksThrottleReasonHwThermalSlowdown
  return 0;
}
}
