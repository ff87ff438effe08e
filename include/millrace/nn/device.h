#pragma once
#include <torch/types.h>

#include <cstdint>
#include <iosfwd>
#include <string>

namespace millrace {

// The device that `run.device` asks for: "auto" (CUDA where there is one), "cpu" or "cuda"; Error(usage) for any other
// word, for a GPU that is not there and, with "auto" too, for one that is too old and for a driver older than this
// program's CUDA; Error(suspect_node) where CUDA does not start for another reason, which is the machine's. GPUs are
// assigned round robin to the processes of a node, the calling thread is set to its own, and float32 is computed as
// such. cuDNN tries its kernels for each shape.
torch::Device resolve_device(const std::string& word, int local_rank = 0);

// At the start of a thread beside the one that has called resolve_device: on a GPU it computes in a stream of its own,
// and waits for nothing that other threads start there later.
void compute_in_own_stream(torch::Device device);

// "auto" (bfloat16 on CUDA, float32 on the CPU), "float32", "bfloat16" or "float16"; Error(usage) for any other word.
torch::Dtype parse_dtype(const std::string& word, torch::Device device);
// "float32" and so on, as `parse_dtype` reads it.
std::string dtype_name(torch::Dtype dtype);

// Why there is no GPU to use, as the end of a sentence.
std::string why_no_gpu();
// Number of GPUs this process can use; 0 in a build without CUDA.
int gpu_count();
// Whether this program is linked with LibTorch's CUDA half; there may be no GPU nevertheless.
bool built_with_cuda();
// "13.0 (driver 13.0), cuDNN 9.19.0, NCCL 2.28.9": the libraries in this process, not those it was built with; or that
// this build has no CUDA.
std::string cuda_versions();
// From now on GPUs compute float32 as such: LibTorch would take TF32 for convolutions and, with
// TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1, for matrix products. Products of 16 bits are added in float32, too, where cuBLAS
// would round parts of the sums.
void compute_float32_exactly();
// From now on only GPU kernels that give the same bits each time; those that lack such a form throw. Before the first
// arithmetic.
void compute_deterministically();
// A host tensor on the device, by way of pinned memory where that is a GPU: from pageable memory the copy would wait
// for all that the GPU has to do before it.
torch::Tensor upload(const torch::Tensor& tensor, torch::Device device);
// Waits for what the calling thread has started on a GPU, and not for other threads' streams.
void finish_own_work(torch::Device device);
// Waits for all work queued on the device.
void synchronize(torch::Device device);
// The cudaStream_t that LibTorch gives its work on this GPU, on the calling thread.
void* compute_stream(int device);
// On a GPU's node: the pinned memory that tensors have given back, which LibTorch keeps for later ones, goes to the
// system. Waits for the GPU.
void release_freed_pinned_memory();
// Keeps the host memory that tensors give back for the next tensors, instead of returning it to the system: a training
// step asks for the same sizes again and again, and fresh pages cost time. Once, at the start of a program.
void keep_freed_host_memory();
// Host tensors from 2 MiB on lie in pages of 2 MiB where the system has them: they are touched for the first time in
// half the time. Before the first tensor.
void ask_for_huge_pages();
// With several threads MKL's AVX2 code may give a row other last digits by its place in the batch, and MKL promises
// equal sums from run to run only where a code path is named. Makes it keep to one order of sums, unless the user has
// set MKL_CBWR: strictly on processors with AVX2 and no AVX-512; on Intel's with AVX-512 by that code, whose sums are
// those that it gives unasked. Before the first arithmetic.
void keep_mkl_exact();
// The most memory that this process has held: on the GPU what LibTorch has taken for tensors, kept blocks and those of
// CUDA graphs included; on the CPU the resident set.
std::uint64_t peak_memory_bytes(torch::Device device);
// The processor's name out of /proc/cpuinfo, which has none on ARM: there the numbers of its maker and kind, of
// NVIDIA's Grace "ARM, implementer 0x41, part 0xd4f".
std::string processor_name(std::istream& cpuinfo);
// "NVIDIA A100-SXM4-80GB", or the processor's name.
std::string device_name(torch::Device device);

}  // namespace millrace
