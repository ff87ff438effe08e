#pragma once
#include <torch/types.h>

#include <cstdint>
#include <span>

#include "millrace/models/clip_text.h"

namespace millrace {

// Makes text embeddings of tokens, on one device: that of a producer or, with encode.text_on=trainer, of a trainer.
class TextEncoder {
 public:
  // The network sees `batch_size` captions at a time: NOTE [Fixed shape] in encoder.h.
  TextEncoder(CLIPTextModel network, torch::Device device, torch::Dtype dtype, int batch_size);

  // Error(io) for an id that the network does not know; a GPU would not say which, and ends the process. `what`: whose
  // tokens they are.
  void check(const torch::Tensor& tokens, const std::string& what) const;
  // Tokens of any number of captions, i32 or i64 (B, 77) on the host -> f16 (B, 77, C) on the device, without a graph.
  // `check` them first.
  torch::Tensor encode(const torch::Tensor& tokens);
  // Embeddings of the empty caption, whose tokens it checks: f16 (77, C), host.
  torch::Tensor null_text(std::span<const std::int32_t> tokens);

 private:
  CLIPTextModel network_;
  torch::Device device_;
  int batch_size_;
};

}  // namespace millrace
