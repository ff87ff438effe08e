// env: versions and hardware, for bug reports.
#include <torch/types.h>
#include <torch/version.h>

#include <fstream>
#include <thread>

#include "command.h"
#include "millrace/comm/world.h"
#include "millrace/nn/device.h"

namespace millrace {
namespace {

// The rest of the first line that starts with `prefix`, without quotes.
std::string first_line(const char* path, const std::string& prefix) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(prefix)) continue;
    std::erase(line, '"');
    return line.substr(line.find_first_not_of(" \t:", prefix.size()));
  }
  return "unknown";
}

int run_env(const CommandLine&) {
  auto row = [](const char* name, const std::string& text) { fmt::print("{:<12} {}\n", name, text); };
  row("millrace", MILLRACE_VERSION);
  row("build", fmt::format("{}, CUDA {}, {}", MILLRACE_BUILD_TYPE, built_with_cuda() ? "ON" : "OFF", __VERSION__));
  row("system", first_line("/etc/os-release", "PRETTY_NAME="));
  row("processor", fmt::format("{}, {} threads", device_name(torch::kCPU), std::thread::hardware_concurrency()));
  row("memory", first_line("/proc/meminfo", "MemTotal"));
  row("LibTorch", TORCH_VERSION);
  row("CUDA", cuda_versions());
  row("MPI", mpi_version());
  row("launched", World::launched() ? "by mpirun or srun" : "alone");
  row("GPUs", gpu_count() == 0 ? "none" : fmt::format("{} x {}", gpu_count(), device_name(torch::kCUDA)));
  return 0;
}

}  // namespace

Command env_command() {
  return {"env", "versions and hardware, for bug reports", "", {}, false, run_env, nullptr};
}

}  // namespace millrace
