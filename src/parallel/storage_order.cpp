#include "millrace/parallel/storage_order.h"

namespace millrace {

torch::Tensor in_storage_order(const torch::Tensor& logical, bool channels_last) {
  return (channels_last ? logical.permute({0, 2, 3, 1}) : logical).contiguous().flatten();
}

torch::Tensor from_storage_order(const torch::Tensor& flat, const std::vector<std::int64_t>& shape,
                                 bool channels_last) {
  if (!channels_last) return flat.view(shape);
  return flat.view({shape[0], shape[2], shape[3], shape[1]}).permute({0, 3, 1, 2});
}

torch::Tensor view_into(const torch::Tensor& bucket, const Placement& placement, const ParameterSpec& spec) {
  return from_storage_order(bucket.narrow(0, placement.offset, spec.elements()), spec.shape, spec.channels_last);
}

}  // namespace millrace
