#include "millrace/nn/layers.h"

namespace millrace::nn {

LinearImpl::LinearImpl(std::int64_t in, std::int64_t out, bool with_bias) {
  weight = register_parameter("weight", torch::empty({out, in}));
  if (with_bias) bias = register_parameter("bias", torch::empty({out}));
}

Conv2dImpl::Conv2dImpl(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                       std::int64_t padding)
    : stride_(stride), padding_(padding) {
  weight = register_parameter("weight", torch::empty({out, in, kernel, kernel}));
  bias = register_parameter("bias", torch::empty({out}));
}

GroupNormImpl::GroupNormImpl(std::int64_t groups, std::int64_t channels, double eps) : groups_(groups), eps_(eps) {
  weight = register_parameter("weight", torch::empty({channels}));
  bias = register_parameter("bias", torch::empty({channels}));
}

LayerNormImpl::LayerNormImpl(std::int64_t channels, double eps) : eps_(eps) {
  weight = register_parameter("weight", torch::empty({channels}));
  bias = register_parameter("bias", torch::empty({channels}));
}

EmbeddingImpl::EmbeddingImpl(std::int64_t rows, std::int64_t channels) {
  weight = register_parameter("weight", torch::empty({rows, channels}));
}

void to_channels_last(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.data().contiguous(at::MemoryFormat::ChannelsLast));
  }
}

}  // namespace millrace::nn
