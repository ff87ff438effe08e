#include "transient_memory.h"

#include <c10/core/DeviceGuard.h>

namespace millrace {

static c10::StorageImpl& storage_of(const torch::Tensor& tensor) {
  return *tensor.storage().unsafeGetStorageImpl();
}

void release_memory(const torch::Tensor& tensor) {
  auto& storage = storage_of(tensor);
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, tensor.device()));
  storage.set_nbytes(std::size_t{0});
}

void allocate_memory(const torch::Tensor& tensor) {
  const c10::DeviceGuard here(tensor.device());  // an allocator serves the thread's current GPU
  auto& storage = storage_of(tensor);
  storage.set_data_ptr_noswap(storage.allocator()->allocate(tensor.nbytes()));
  storage.set_nbytes(tensor.nbytes());
}

bool has_memory(const torch::Tensor& tensor) {
  return storage_of(tensor).nbytes() > 0;
}

}  // namespace millrace
