#pragma once
#include <arrow/memory_pool.h>
#include <arrow/status.h>

#include <cstdint>

#include "millrace/core/units.h"

namespace millrace {

// Arrow's memory of one reader, of which there is no more than so much at a time. A file of a few kilobytes may ask for
// any amount: a dictionary's value is decoded anew for each row that has it.
class LimitedPool final : public arrow::ProxyMemoryPool {
 public:
  LimitedPool(arrow::MemoryPool* pool, std::int64_t max_bytes) : ProxyMemoryPool(pool), max_bytes_(max_bytes) {}

  using ProxyMemoryPool::Allocate;
  using ProxyMemoryPool::Reallocate;

  arrow::Status Allocate(std::int64_t size, std::int64_t alignment, std::uint8_t** out) override {
    ARROW_RETURN_NOT_OK(check_room(size));
    return ProxyMemoryPool::Allocate(size, alignment, out);
  }

  arrow::Status Reallocate(std::int64_t old_size, std::int64_t new_size, std::int64_t alignment,
                           std::uint8_t** bytes) override {
    ARROW_RETURN_NOT_OK(check_room(new_size - old_size));
    return ProxyMemoryPool::Reallocate(old_size, new_size, alignment, bytes);
  }

 private:
  arrow::Status check_room(std::int64_t more) const {
    if (more <= max_bytes_ - bytes_allocated()) return arrow::Status::OK();
    return arrow::Status::OutOfMemory("a few of its rows take more than ",
                                      format_bytes(static_cast<std::uint64_t>(max_bytes_)), " of memory");
  }

  const std::int64_t max_bytes_;
};

}  // namespace millrace
