#include "millrace/encode/text_encoder.h"

#include <torch/utils.h>

#include <vector>

#include "millrace/core/error.h"
#include "millrace/nn/device.h"

namespace millrace {

// Repeats the last row until there are `rows`.
static torch::Tensor pad_rows(const torch::Tensor& tensor, std::int64_t rows) {
  const auto missing = rows - tensor.size(0);
  if (missing == 0) return tensor;
  auto sizes = tensor.sizes().vec();
  sizes[0] = missing;
  return torch::cat({tensor, tensor.slice(0, tensor.size(0) - 1).expand(sizes)});
}

TextEncoder::TextEncoder(CLIPTextModel network, torch::Device device, torch::Dtype dtype, int batch_size)
    : network_(std::move(network)), device_(device), batch_size_(batch_size) {
  network_->to(device, dtype);
  network_->eval();
}

void TextEncoder::check(const torch::Tensor& tokens, const std::string& what) const {
  const auto vocabulary = network_->config().vocab_size;
  for (const auto id : {tokens.min().item<std::int64_t>(), tokens.max().item<std::int64_t>()})
    if (id < 0 || id >= vocabulary)
      throw Error(Exit::io,
                  fmt::format("{}: token id {}; the text encoder of model.pipeline knows {}", what, id, vocabulary),
                  "the tokenizer that made it belongs to another text encoder");
}

torch::Tensor TextEncoder::encode(const torch::Tensor& tokens) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> parts;
  for (const auto& ids : tokens.to(torch::kInt64).split(batch_size_)) {
    const auto text = network_->forward(upload(pad_rows(ids, batch_size_), device_));  // (batch_size, 77, C)
    parts.push_back(text.slice(0, 0, ids.size(0)).to(torch::kHalf));
  }
  return torch::cat(parts);
}

torch::Tensor TextEncoder::null_text(std::span<const std::int32_t> tokens) {
  const auto ids = torch::tensor(at::ArrayRef<std::int32_t>(tokens.data(), tokens.size()), torch::kInt32);
  check(ids, "the empty caption");
  return encode(ids.unsqueeze(0))[0].cpu();
}

}  // namespace millrace
