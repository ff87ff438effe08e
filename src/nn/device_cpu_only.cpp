#include "device_gpu.h"
#include "millrace/core/error.h"
#include "millrace/nn/device.h"
#include "millrace/nn/gpu_identity.h"

namespace millrace {

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
  ensure(false, "no GPU in this build");
  return nullptr;
}
void release_freed_pinned_memory() {
  ensure(false, "no GPU in this build");
}
GpuIdentity gpu_identity(torch::Device) {
  ensure(false, "no GPU in this build");
  return {};
}

namespace gpu {

bool is_broken() {
  return false;
}
bool has_fault() {
  return false;
}
void use(int) {
  ensure(false, "no GPU in this build");
}
void use_own_stream(int) {
  ensure(false, "no GPU in this build");
}
void finish_own_stream(int) {
  ensure(false, "no GPU in this build");
}
void synchronize(int) {
  ensure(false, "no GPU in this build");
}
std::uint64_t peak_memory_bytes(int) {
  ensure(false, "no GPU in this build");
  return 0;
}
std::string name(int) {
  ensure(false, "no GPU in this build");
  return {};
}
std::string uuid(int) {
  ensure(false, "no GPU in this build");
  return {};
}

}  // namespace gpu
}  // namespace millrace
