#include "nvml.h"

#include <dlfcn.h>

#include <type_traits>

#include "millrace/core/units.h"

namespace millrace::nvml {
namespace {

// From NVML's API reference; its numbers of functions and fields of structures do not change.
struct Utilization {
  unsigned int gpu, memory;  // percent
};
struct Memory {
  unsigned long long total, free, used;  // bytes
};
using Result = int;  // 0 = success

// Functions of libnvidia-ml.so.1, which stays loaded; null where it has none of that name.
struct Library {
  Result (*init)() = nullptr;
  Result (*handle_by_uuid)(const char*, void**) = nullptr;
  Result (*utilization)(void*, Utilization*) = nullptr;
  Result (*memory)(void*, Memory*) = nullptr;
  Result (*energy)(void*, unsigned long long*) = nullptr;  // millijoules
  Result (*power)(void*, unsigned int*) = nullptr;         // milliwatts
  Result (*clock)(void*, int, unsigned int*) = nullptr;    // MHz
  Result (*temperature)(void*, int, unsigned int*) = nullptr;
  Result (*throttle_reasons)(void*, unsigned long long*) = nullptr;
  bool is_usable = false;

  Library() {
    void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    const auto load = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    };
    load(init, "nvmlInit_v2");
    load(handle_by_uuid, "nvmlDeviceGetHandleByUUID");
    load(utilization, "nvmlDeviceGetUtilizationRates");
    load(memory, "nvmlDeviceGetMemoryInfo");
    load(energy, "nvmlDeviceGetTotalEnergyConsumption");
    load(power, "nvmlDeviceGetPowerUsage");
    load(clock, "nvmlDeviceGetClockInfo");
    load(temperature, "nvmlDeviceGetTemperature");
    load(throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    is_usable = init && handle_by_uuid && init() == 0;
  }
};

const Library& library() {
  static const Library loaded;
  return loaded;
}

// What `function` says, times `unit`; nothing where it does not know.
template <class T>
std::optional<double> ask(Result (*function)(void*, T*), void* device, double unit) {
  T value = 0;
  if (!function || function(device, &value) != 0) return std::nullopt;
  return static_cast<double>(value) * unit;
}

// The same of functions that are told which of several they are asked for.
std::optional<double> ask_kind(Result (*function)(void*, int, unsigned int*), void* device, int kind) {
  unsigned int value = 0;
  if (!function || function(device, kind, &value) != 0) return std::nullopt;
  return value;
}

}  // namespace

void* find(const std::string& uuid) {
  void* device = nullptr;
  if (uuid.empty() || !library().is_usable || library().handle_by_uuid(uuid.c_str(), &device) != 0) return nullptr;
  return device;
}

Reading read(void* device) {
  Reading reading;
  Utilization utilization{};
  if (library().utilization && library().utilization(device, &utilization) == 0) reading.busy = utilization.gpu / 100.0;
  Memory memory{};
  if (library().memory && library().memory(device, &memory) == 0)
    reading.memory_gib = static_cast<double>(memory.used) / gib;
  reading.joules = ask(library().energy, device, 1e-3);
  reading.watts = ask(library().power, device, 1e-3);
  reading.clock_mhz = ask_kind(library().clock, device, /*NVML_CLOCK_SM*/ 1);
  reading.celsius = ask_kind(library().temperature, device, /*NVML_TEMPERATURE_GPU*/ 0);
  reading.slowed_by = ask(library().throttle_reasons, device, 1);
  return reading;
}

}  // namespace millrace::nvml
