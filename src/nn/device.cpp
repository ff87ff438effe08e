#include "millrace/nn/device.h"

#include <malloc.h>
#include <sys/resource.h>

#include <fstream>
#include <limits>
#include <string_view>

#include "device_gpu.h"
#include "millrace/core/error.h"

namespace millrace {

namespace {

std::uint64_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

}  // namespace

torch::Device resolve_device(const std::string& word, int local_rank) {
  if (word != "auto" && word != "cpu" && word != "cuda") {
    fail(Exit::usage, "run.device={}: expected auto, cpu or cuda", word);
  }
  const int gpus = word == "cpu" ? 0 : gpu_count();
  if (gpus > 0) {
    compute_float32_exactly();
    at::globalContext().setBenchmarkCuDNN(true);  // shapes stay the same for the whole run
    gpu::use(local_rank % gpus);
    return {torch::kCUDA, static_cast<torch::DeviceIndex>(local_rank % gpus)};
  }
  if (word == "cuda" || (word == "auto" && gpu::is_broken()))
    throw Error(gpu::has_fault() ? Exit::suspect_node : Exit::usage,
                fmt::format("run.device={}: {}", word, why_no_gpu()), "use run.device=cpu");
  return torch::kCPU;
}

void compute_in_own_stream(torch::Device device) {
  if (device.is_cuda()) gpu::use_own_stream(device.index());
}

torch::Dtype parse_dtype(const std::string& word, torch::Device device) {
  if (word == "auto") return device.is_cuda() ? torch::kBFloat16 : torch::kFloat32;
  if (word == "float32") return torch::kFloat32;
  if (word == "bfloat16") return torch::kBFloat16;
  if (word == "float16") return torch::kFloat16;
  fail(Exit::usage, "dtype {}: expected auto, float32, bfloat16 or float16", word);
}

std::string dtype_name(torch::Dtype dtype) {
  switch (dtype) {
    case torch::kFloat32:
      return "float32";
    case torch::kBFloat16:
      return "bfloat16";
    case torch::kFloat16:
      return "float16";
    default:
      return c10::toString(dtype);
  }
}

bool built_with_cuda() {
  return at::Context::hasCUDART();
}

// By the older setters, which LibTorch's own code still asks for matrix products, and by the newer ones, which nothing
// above them (the backend's or the general precision) can change.
void compute_float32_exactly() {
  using enum at::Float32Op;
  auto& context = at::globalContext();
  context.setAllowTF32CuBLAS(false);  // TORCH_ALLOW_TF32_CUBLAS_OVERRIDE would have it otherwise
  context.setAllowTF32CuDNN(false);
  for (const auto op : {MATMUL, CONV, RNN})
    context.setFloat32Precision(at::Float32Backend::CUDA, op, at::Float32Precision::IEEE);
  context.setAllowFP16ReductionCuBLAS(/*allow_reduced_precision=*/false, /*allow_splitk=*/true);
  context.setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false, /*allow_splitk=*/true);
}

void compute_deterministically() {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // without it cuBLAS may add in another order
  at::globalContext().setBenchmarkCuDNN(false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
}

torch::Tensor upload(const torch::Tensor& tensor, torch::Device device) {
  if (!device.is_cuda() || !tensor.is_cpu()) return tensor.to(device);
  if (tensor.is_pinned()) return tensor.to(device, /*non_blocking=*/true);
  const auto pinned = torch::empty(tensor.sizes(), tensor.options().pinned_memory(true));
  return pinned.copy_(tensor).to(device, /*non_blocking=*/true);
}

void finish_own_work(torch::Device device) {
  if (device.is_cuda()) gpu::finish_own_stream(device.index());
}

void synchronize(torch::Device device) {
  if (device.is_cuda()) gpu::synchronize(device.index());
}

void keep_freed_host_memory() {
  constexpr int largest_kept_block = 32 << 20;  // glibc accepts no more; larger tensors still come from the system
  mallopt(M_MMAP_THRESHOLD, largest_kept_block);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

void ask_for_huge_pages() {
  setenv("THP_MEM_ALLOC_ENABLE", "1", /*overwrite=*/0);
}

void keep_mkl_exact() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) return;
  if (!__builtin_cpu_supports("avx512f")) {
    setenv("MKL_CBWR", "AVX2,STRICT", /*overwrite=*/0);
  } else if (__builtin_cpu_is("intel")) {
    setenv("MKL_CBWR", "AVX512", /*overwrite=*/0);
  }
#endif
}

std::uint64_t peak_memory_bytes(torch::Device device) {
  return device.is_cuda() ? gpu::peak_memory_bytes(device.index()) : peak_resident_bytes();
}

std::string processor_name(std::istream& cpuinfo) {
  std::string maker, part;
  for (std::string line; std::getline(cpuinfo, line);) {
    const auto behind = [&](std::string_view key) {
      const auto value = line.starts_with(key) ? line.find_first_not_of(" \t:", key.size()) : line.npos;
      return value == line.npos ? std::string() : line.substr(value);
    };
    if (auto name = behind("model name"); !name.empty()) return name;
    if (maker.empty()) maker = behind("CPU implementer");
    if (part.empty()) part = behind("CPU part");
  }
  return maker.empty() || part.empty() ? "CPU" : fmt::format("ARM, implementer {}, part {}", maker, part);
}

std::string device_name(torch::Device device) {
  if (device.is_cuda()) return gpu::name(device.index());
  std::ifstream cpuinfo("/proc/cpuinfo");
  return processor_name(cpuinfo);
}

std::string gpu::format_uuid(std::span<const std::byte, 16> bytes) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < bytes.size(); ++i)
    text += fmt::format("{}{:02x}", i == 0 || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "",
                        std::to_integer<unsigned>(bytes[i]));
  return text;
}

}  // namespace millrace
