#include "millrace/nn/torch_error.h"

#include <c10/util/Exception.h>

namespace millrace {

namespace {

constexpr int cuda_error_memory_allocation = 2;  // of the driver's and the runtime's codes
constexpr int cuda_error_devices_unavailable = 46;

Error too_little_memory(const c10::Error& error) {
  return Error(Exit::usage, error.what_without_backtrace(),
               "batch.micro, ema.enabled and parallel.strategy on trainers, with a U-Net also "
               "model.gradient_checkpointing and model.cuda_graphs, encode.batch_size on producers, "
               "generate.batch_size and evaluate.batch_size decide how much memory a GPU needs");
}

const char* hint_for_gpu(const c10::AcceleratorError& error) {
  if (error.get_error_code() == cuda_error_devices_unavailable)
    return "another process has that GPU, and `nvidia-smi -q -d COMPUTE` tells its mode: exclusive-process lets one "
           "rank use it";
  return "the kernel's log tells of a broken GPU, `millrace env` of the driver";
}

}  // namespace

// cuBLAS and cuDNN ask for memory of their own, past LibTorch's allocator, which only repeats their words:
// CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED and, of cuDNN 9, ..._DEVICE_ALLOCATION_FAILED. The driver's own
// words come from its compiler and its allocator.
bool tells_of_too_little_memory(std::string_view message) {
  for (const char* words : {"_STATUS_ALLOC_FAILED", "_ALLOCATION_FAILED", "CUDA error: out of memory",
                            "CUDA out of memory", "CUDA driver error: out of memory", "(out of memory)"})
    if (message.find(words) != message.npos) return true;
  return false;
}

std::optional<Error> present_torch_error() {
  try {
    throw;
  } catch (const c10::OutOfMemoryError& error) {
    return too_little_memory(error);
  } catch (const c10::AcceleratorError& error) {
    if (error.get_error_code() == cuda_error_memory_allocation) return too_little_memory(error);
    return Error(Exit::suspect_node, error.what_without_backtrace(), hint_for_gpu(error));
  } catch (const c10::Error& error) {
    if (tells_of_too_little_memory(error.msg())) return too_little_memory(error);
    return bug(error.what_without_backtrace());
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace millrace
