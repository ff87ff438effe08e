#include "millrace/nn/torch_error.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <initializer_list>
#include <new>
#include <string_view>

#include "millrace/core/phase.h"

namespace millrace {

namespace {

constexpr int cuda_error_memory_allocation = 2;  // of the driver's and the runtime's codes
constexpr int cuda_error_devices_unavailable = 46;

bool is_in_one_of(std::initializer_list<const char*> phases) {
  const std::string_view now = phase::current.load();
  return std::ranges::any_of(phases, [&](const char* phase) { return now == phase; });
}

// What has trained, or encoded, for a while with these settings has met something else: another process, or memory cut
// into pieces. Pictures and validation may be hours away, so that settings are to blame there, as in the first steps,
// of which one records a CUDA graph.
Exit exit_of_full_gpu() {
  constexpr std::int64_t usual_steps = 20;
  // An encoder may have a thread of its own while the trainer waits for its samples.
  const bool is_under_way = is_in_one_of({phase::training, phase::waiting_for_samples, phase::producing});
  return is_under_way && phase::steps_taken > usual_steps ? Exit::suspect_node : Exit::usage;
}

Error gpu_is_full(const c10::Error& error) {
  return Error(exit_of_full_gpu(), error.what_without_backtrace(),
               "batch.micro, ema.enabled and parallel.strategy on trainers, with a U-Net also "
               "model.gradient_checkpointing and model.cuda_graphs, encode.batch_size on producers, "
               "generate.batch_size and evaluate.batch_size decide how much memory a GPU needs; `nvidia-smi` there "
               "tells who else uses it");
}

// A limit or a setting refuses memory, and will at the next start: where a host without limits runs out of it, the
// kernel kills a process.
constexpr const char* hint_for_host =
    "batch.micro, encode.batch_size, data.shuffle_block, generate.batch_size and evaluate.batch_size decide how much "
    "memory a process needs, `ulimit -v` and the limit of its control group (a container's, --mem of a job) how much "
    "it may have";

// Of c10's allocator on CPUs, whose exceptions have no type of their own.
bool tells_of_full_host(std::string_view message) {
  return message.find("DefaultCPUAllocator: can't allocate memory") != message.npos;
}

const char* hint_for_gpu(const c10::AcceleratorError& error) {
  if (error.get_error_code() == cuda_error_devices_unavailable)
    return "another process has that GPU, and `nvidia-smi -q -d COMPUTE` tells its mode: exclusive-process lets one "
           "rank use it";
  return "the kernel's log tells of a broken GPU, `millrace env` of the driver";
}

// Settings are to blame at the start; what has trained steps with them has met something else, a crowded node say, and
// may start again.
Exit exit_of_full_host() {
  const bool has_begun = phase::steps_taken > 0 && is_in_one_of({phase::waiting_for_samples, phase::producing});
  const bool is_under_way =
      is_in_one_of({phase::training, phase::accounting, phase::saving, phase::validating, phase::painting});
  return has_begun || is_under_way ? Exit::suspect_node : Exit::usage;
}

}  // namespace

// cuBLAS and cuDNN ask for memory of their own, past LibTorch's allocator, which only repeats their words:
// CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED and, of cuDNN 9, ..._DEVICE_ALLOCATION_FAILED. The driver's own
// words come from its compiler and its allocator.
bool tells_of_full_gpu(std::string_view message) {
  for (const char* words : {"_STATUS_ALLOC_FAILED", "_ALLOCATION_FAILED", "CUDA error: out of memory",
                            "CUDA out of memory", "CUDA driver error: out of memory", "(out of memory)"})
    if (message.find(words) != message.npos) return true;
  return false;
}

bool tells_of_too_little_memory(std::string_view message) {
  return tells_of_full_gpu(message) || tells_of_full_host(message);
}

std::optional<Error> present_torch_error() {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return gpu_is_full(error);
  } catch (const c10::AcceleratorError& error) {
    if (error.get_error_code() == cuda_error_memory_allocation) return gpu_is_full(error);
    return Error(Exit::suspect_node, error.what_without_backtrace(), hint_for_gpu(error));
  } catch (const c10::Error& error) {
    if (tells_of_full_host(error.msg()))
      return Error(exit_of_full_host(), error.what_without_backtrace(), hint_for_host);
    if (tells_of_full_gpu(error.msg())) return gpu_is_full(error);
    return bug(error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return Error(exit_of_full_host(), "the host has too little memory for this process", hint_for_host);
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace millrace
