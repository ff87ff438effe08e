#include "environment.h"

#include <fmt/ranges.h>
#include <torch/types.h>
#include <torch/version.h>

#include <fstream>
#include <thread>

#include "millrace/comm/world.h"
#include "millrace/core/error.h"
#include "millrace/core/files.h"
#include "millrace/nn/device.h"
#include "millrace/nn/gpu_watch.h"

namespace millrace {

// "2 x NVIDIA H100 (GPU-1c2f..., GPU-9e0a...)".
static std::string describe_gpus() {
  if (gpu_count() == 0) return built_with_cuda() ? fmt::format("none ({})", why_no_gpu()) : "none";
  std::vector<std::string> uuids;
  for (int i = 0; i < gpu_count(); ++i) uuids.push_back(gpu_uuid({torch::kCUDA, static_cast<torch::DeviceIndex>(i)}));
  return fmt::format("{} x {} ({})", gpu_count(), device_name(torch::kCUDA), fmt::join(uuids, ", "));
}

std::string first_line(const char* path, const std::string& prefix) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(prefix)) continue;
    std::erase(line, '"');
    const auto begin = line.find_first_not_of(" \t:", prefix.size());
    return begin == line.npos ? "unknown" : line.substr(begin);
  }
  return "unknown";
}

// "unknown" of a program that its users may run, but not read.
static std::string program_digest() {
  try {
    return hash_file("/proc/self/exe").hex();
  } catch (const Error&) {
    return "unknown";
  }
}

std::vector<std::pair<std::string, std::string>> describe_environment() {
  return {
      {"millrace", MILLRACE_VERSION},
      {"build", fmt::format("{}, CUDA {}, {}", MILLRACE_BUILD_TYPE, built_with_cuda() ? "ON" : "OFF", __VERSION__)},
      {"program", program_digest()},  // which build it was: the version alone does not tell
      {"system", first_line("/etc/os-release", "PRETTY_NAME=")},
      {"processor", fmt::format("{}, {} threads", device_name(torch::kCPU), std::thread::hardware_concurrency())},
      {"memory", first_line("/proc/meminfo", "MemTotal")},
      {"LibTorch", TORCH_VERSION},
      {"CUDA", cuda_versions()},
      {"MPI", mpi_version()},
      {"launched", World::launched() ? "by a launcher of MPI" : "alone"},
      {"GPUs", describe_gpus()},
  };
}

}  // namespace millrace
