#include "millrace/encode/batch.h"

#include <torch/utils.h>

#include "millrace/core/error.h"

namespace millrace {

std::vector<bool> finite_rows(const EncodedBatch& batch) {
  const auto finite =
      (torch::isfinite(batch.moments).flatten(1).all(1) & torch::isfinite(batch.text).flatten(1).all(1)).contiguous();
  const bool* const rows = finite.const_data_ptr<bool>();
  return std::vector<bool>(rows, rows + finite.numel());
}

EncodedBatch select_rows(const EncodedBatch& batch, const std::vector<int>& rows) {
  EncodedBatch selected;
  auto index = torch::tensor(std::vector<std::int64_t>(rows.begin(), rows.end()), torch::kInt64);
  for (int row : rows) selected.refs.push_back(batch.refs[row]);
  selected.moments = batch.moments.index_select(0, index);
  selected.text = batch.text.index_select(0, index);
  return selected;
}

EncodedBatch concatenate(std::vector<EncodedBatch> batches) {
  ensure(!batches.empty(), "a batch is made of batches");
  if (batches.size() == 1) return std::move(batches.front());
  EncodedBatch whole;
  std::vector<torch::Tensor> moments, text;
  for (auto& batch : batches) {
    whole.refs.insert(whole.refs.end(), std::make_move_iterator(batch.refs.begin()),
                      std::make_move_iterator(batch.refs.end()));
    moments.push_back(batch.moments);
    text.push_back(batch.text);
  }
  whole.moments = torch::cat(moments);
  whole.text = torch::cat(text);
  return whole;
}

torch::Dtype text_dtype(const EncodingShape& shape) {
  return shape.has_tokens() ? torch::kInt32 : torch::kHalf;
}

static torch::Tensor make_rows(std::int64_t rows, std::vector<std::int64_t> shape, torch::Dtype dtype, bool pinned) {
  shape.insert(shape.begin(), rows);
  return torch::empty(shape, torch::TensorOptions(dtype).pinned_memory(pinned));
}

EncodedBatch make_empty_batch(std::int64_t samples, const EncodingShape& shape, bool pinned) {
  return {std::vector<SampleRef>(static_cast<std::size_t>(samples)),
          make_rows(samples, shape.moments, torch::kHalf, pinned),
          make_rows(samples, shape.text, text_dtype(shape), pinned)};
}

}  // namespace millrace
