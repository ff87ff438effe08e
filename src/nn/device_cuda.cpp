#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "device_gpu.h"
#include "millrace/core/error.h"
#include "millrace/nn/device.h"
#include "millrace/nn/gpu_identity.h"
#include "millrace/nn/pass_graph.h"

namespace millrace {

namespace {

// 13000 = 13.0; 0 = there is none.
std::string cuda_version(int number) {
  return number == 0 ? "none" : fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

std::string cudnn_version() {
  const auto number = at::detail::getCUDAHooks().versionRuntimeCuDNN();
  return fmt::format("{}.{}.{}", number / 10000, number % 10000 / 100, number % 100);
}

// Asked by name: LibTorch brings the library along and tells only which one it was built with.
std::string nccl_version() {
  const auto get = reinterpret_cast<int (*)(int*)>(dlsym(RTLD_DEFAULT, "ncclGetVersion"));
  int number = 0;
  if (get == nullptr || get(&number) != 0) return "none";
  return fmt::format("{}.{}.{}", number / 10000, number % 10000 / 100, number % 100);
}

// cudaSuccess also where there is no driver or no GPU.
cudaError_t start_error() {
  int driver = 0, devices = 0;
  cudaDriverGetVersion(&driver);
  const auto error = driver > 0 ? cudaGetDeviceCount(&devices) : cudaSuccess;
  return error == cudaErrorNoDevice ? cudaSuccess : error;
}

}  // namespace

int gpu_count() {
  return c10::cuda::device_count();
}

std::string why_no_gpu() {
  if (!gpu::is_broken()) return "no usable GPU or driver on this machine";
  if (gpu::has_fault()) return fmt::format("CUDA does not start: {}", cudaGetErrorString(start_error()));
  int runtime = 0, driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  return fmt::format("the driver is made for CUDA {}, this program for {}", cuda_version(driver),
                     cuda_version(runtime));
}

std::string cuda_versions() {
  int runtime = 0, driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  return fmt::format("{} (driver {}), cuDNN {}, NCCL {}", cuda_version(runtime), cuda_version(driver), cudnn_version(),
                     nccl_version());
}

void* compute_stream(int device) {
  return at::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}

void release_freed_pinned_memory() {
  const NoRecording waits;
  at::getHostAllocator(at::kCUDA)->empty_cache();
}

GpuIdentity gpu_identity(torch::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  GpuIdentity found{.uuid = gpu::uuid(device.index())};
  std::size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  found.free_bytes = free;
  found.total_bytes = total;
  return found;
}

namespace gpu {

bool is_broken() {
  return start_error() != cudaSuccess;
}
bool has_fault() {
  return is_broken() && start_error() != cudaErrorInsufficientDriver;
}

void use(int index) {
  const auto& gpu = *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(index));
  if (10 * gpu.major + gpu.minor < 75)  // the oldest of src/kernels/CMakeLists.txt, and LibTorch's for CUDA 13
    throw Error(Exit::usage,
                fmt::format("{}: compute capability {}.{}, and there are kernels for 7.5 and later", gpu.name,
                            gpu.major, gpu.minor),
                "leave that node out, or use run.device=cpu");
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(index));
}

void use_own_stream(int index) {
  use(index);
  // Always the same one: the allocator keeps memory for each stream that was ever used.
  static const auto stream =
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, static_cast<c10::DeviceIndex>(index));
  const NoRecording waits;
  c10::cuda::device_synchronize();  // streams of the pool do not wait for the default one, which may still fill weights
  c10::cuda::setCurrentCUDAStream(stream);
}

void finish_own_stream(int index) {
  c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(index)).synchronize();
}

void synchronize(int index) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  c10::cuda::device_synchronize();
}

std::uint64_t peak_memory_bytes(int index) {
  using c10::CachingAllocator::StatType;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(index));
  return static_cast<std::uint64_t>(stats.reserved_bytes[static_cast<std::size_t>(StatType::AGGREGATE)].peak);
}

std::string name(int index) {
  return at::cuda::getDeviceProperties(index)->name;
}

std::string uuid(int index) {
  return format_uuid(std::as_bytes(std::span(at::cuda::getDeviceProperties(index)->uuid.bytes)));
}

}  // namespace gpu
}  // namespace millrace
