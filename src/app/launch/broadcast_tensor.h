#pragma once
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "millrace/comm/group.h"

namespace millrace {

// The tensor that `root` has in host memory, contiguous and of this dtype, on all ranks; undefined if it is there.
// Collective.
inline torch::Tensor broadcast_tensor(const Group& group, torch::Tensor tensor, torch::Dtype dtype, int root) {
  nlohmann::json shape;
  if (group.rank() == root && tensor.defined()) shape = tensor.sizes().vec();
  shape = nlohmann::json::parse(group.broadcast(shape.dump(), root));
  if (shape.is_null()) return {};
  if (group.rank() != root) tensor = torch::empty(shape.get<std::vector<std::int64_t>>(), dtype);
  group.broadcast(std::span(static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()), root);
  return tensor;
}

}  // namespace millrace
