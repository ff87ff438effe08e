#include "millrace/nn/weights.h"

namespace millrace {

std::map<std::string, torch::Tensor> weights_of(const torch::nn::Module& module) {
  std::map<std::string, torch::Tensor> weights;
  for (const auto& parameter : module.named_parameters()) weights[parameter.key()] = parameter.value().detach();
  return weights;
}

std::int64_t count_parameters(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

}  // namespace millrace
