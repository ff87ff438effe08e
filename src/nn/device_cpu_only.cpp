#include "device_gpu.h"
#include "millrace/core/error.h"
#include "millrace/nn/device.h"
#include "millrace/nn/gpu_identity.h"

namespace millrace {

[[noreturn]] static void refuse() {
  throw bug("no GPU in this build");
}

int gpu_count() {
  return 0;
}
std::string why_no_gpu() {
  return "this build has no CUDA (MILLRACE_CUDA=OFF)";
}
std::string cuda_versions() {
  return "not in this build";
}
void* compute_stream(int) {
  refuse();
}
void release_freed_pinned_memory() {
  refuse();
}
GpuIdentity gpu_identity(torch::Device) {
  refuse();
}

namespace gpu {

bool is_broken() {
  return false;
}
bool has_fault() {
  return false;
}
void use(int) {
  refuse();
}
void use_own_stream(int) {
  refuse();
}
void finish_own_stream(int) {
  refuse();
}
void synchronize(int) {
  refuse();
}
std::uint64_t peak_memory_bytes(int) {
  refuse();
}
std::string name(int) {
  refuse();
}
std::string uuid(int) {
  refuse();
}

}  // namespace gpu
}  // namespace millrace
